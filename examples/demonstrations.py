"""Start from demonstrations: record them as an npz file, clone them, and go on by oneself.

Here a hand-written controller demonstrates; `rescore data export RUN` writes such a file from a
trained policy, and any program can with `numpy.savez`.
"""

import sys

import gymnasium
import numpy as np

import rescore

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
SMALL = {"hidden": (16, 16), "T": 2} if STEPS < 1_000 else {}
ENV = "InvertedPendulum-v4"


def expert(observation: np.ndarray) -> np.ndarray:
    """Pushes the cart under the pole: feedback on place, angle and their velocities."""
    return np.clip(observation @ [0.3, 6.0, 0.5, 1.0], -3, 3).astype(np.float32)[None]


env = gymnasium.make(ENV)
names = ("observations", "actions", "rewards", "terminations", "next_observations")
rows: dict[str, list] = {name: [] for name in names}
observation, _ = env.reset(seed=0)
total = 0.0
for _ in range(1_000):
    action = expert(observation)
    then, reward, terminated, truncated, _ = env.step(action)
    for name, value in zip(names, (observation, action, reward, terminated, then)):
        rows[name].append(value)
    total += float(reward)
    observation = env.reset()[0] if terminated or truncated else then
np.savez("demos.npz", **{name: np.array(values) for name, values in rows.items()})
print(f"1,000 steps of the expert, return {total:.0f}")

training = {
    "demos": "demos.npz",
    "demo_share": 0.5,  # of every batch
    "pretrain": STEPS // 2,  # updates of behaviour cloning before the first step
    "warmup": min(1_000, STEPS // 2),
    "eval_every": 0,
    "batch_size": 32 if SMALL else 256,
}
agent = rescore.Agent("dpmd", ENV, training=training, **SMALL)
agent.learn(STEPS, evaluate=False)
print(agent.evaluate(episodes=3).summary())
