"""Evaluate an agent with Stable-Baselines3's own function, unchanged: `predict` is all it asks."""

import sys

import gymnasium

import rescore

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
SMALL = {"hidden": (16, 16), "training": {"warmup": 50, "batch_size": 32}} if STEPS < 1_000 else {}

agent = rescore.Agent("sac", "InvertedPendulum-v4", **SMALL).learn(STEPS, evaluate=False)
env = gymnasium.make("InvertedPendulum-v4")
try:
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
except ImportError:
    print("stable_baselines3 is not installed; our own evaluation instead:")
    print(agent.evaluate(episodes=5).summary())
else:
    mean, std = evaluate_policy(agent, Monitor(env), n_eval_episodes=5, deterministic=True)
    print(f"{mean:.1f} ± {std:.1f}")
