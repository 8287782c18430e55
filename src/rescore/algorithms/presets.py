"""Named settings of every algorithm, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rescore.models.controllers import Relaxation


@dataclass(frozen=True)
class Preset:
    """Values that differ from the defaults of the algorithm and of training."""

    source: str
    algorithm: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


# Where the paper is silent (M, delays, reward scale, rates), `paper` takes the released values.
RELEASED_DPMD = {
    "reward_scale": 0.2,
    "actor_lr_end": 3e-5,
    "polyak_rate": 0.005,
    "T": 20,
    "hidden": (256, 256, 256),
    "act_candidates": 32,
    "eval_candidates": 32,
    # From 5 and 0.5 to the entropy of -0.9 nats per dimension, the same for every task.
    "noise": Relaxation(0.5, 0.09838),
    "lam": Relaxation(5.0, 0.9838),
    "q_ema": 0.002,  # xi = 0.001 per update; ours moves at policy steps, every second update
}
COMPARISON = {"num_envs": 5, "utd": 0.2, "chunk": 1, "warmup": 30_000}
COMPARISON |= {"eval_every": 50_000, "eval_episodes": 20}
# 820 x 5 = 4,100 steps: the paper's 4,096 cannot be shared by its five environments.
ROLLOUT = {"num_envs": 5, "chunk": 820}
# Minibatches of 5,000 denoising steps; means over action dimensions make the clip d times looser.
ORIGINAL_DPPO = {"hidden": (512, 512, 512), "critic_hidden": (256, 256, 256), "minibatches": 20}
ORIGINAL_DPPO |= {"actor_lr": 1e-4, "critic_lr": 1e-3, "max_grad_norm": None, "clip": 0.1}
ORIGINAL_DPPO |= {"target_kl": 1.0, "reduce": "mean", "lr_end": 1.0}
PRESETS = {
    "dpmd": {
        "default": Preset("the best that was measured on two CPU cores, 1 update per step"),
        "paper": Preset(
            "the paper's text: one sample of pi_old at s, one in the target, cosine schedule",
            RELEASED_DPMD
            | {"target_candidates": 1, "a_0": "policy", "loss_at": "obs", "update_noise": "none"},
            COMPARISON,
        ),
        "released": Preset(
            "the authors' released code, as far as hyperparameters express it",
            RELEASED_DPMD
            | {"schedule": "linear", "schedule_scale": 0.8, "start_std": 0.5, "critic_steps": 2}
            | {"target_candidates": 32, "a_0": "best", "update_noise": "choice"}
            | {"normalise_q": False},
            COMPARISON,
        ),
    },
    "dppo": {
        "default": Preset("the best that was measured on two CPU cores", {}, ROLLOUT),
        "paper": Preset(
            "the paper's rollouts and budget with the settings of DPPO's own code",
            ORIGINAL_DPPO | {"minibatches": 8},
            ROLLOUT | {"eval_every": 50_000, "eval_episodes": 20},
        ),
        "original": Preset(
            "DPPO's own code from scratch, as far as hyperparameters express it",
            ORIGINAL_DPPO,
            {"num_envs": 10, "chunk": 1_000, "eval_every": 100_000},
        ),
    },
    "ppo": {
        "default": Preset("the best that was measured on two CPU cores", {}, ROLLOUT),
        "paper": Preset(
            "the paper's rollouts and epochs; the standard recipe where it is silent",
            {"value_clip": 0.2, "lr_end": 0.0},
            ROLLOUT | {"eval_every": 50_000, "eval_episodes": 20},
        ),
    },
}
