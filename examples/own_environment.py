"""An environment of one's own: check it, train on it, save, load, and go on.

Any `gymnasium.Env` with bounded continuous actions works. Give the class itself: evaluations and
further seeds make copies of it.
"""

import sys

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

import rescore

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
SMALL = {"hidden": (16, 16), "T": 2} if STEPS < 1_000 else {}
TRAINING = {"warmup": 100, "batch_size": 32, "eval_every": 0} if SMALL else {}


class Dock(gymnasium.Env):
    """Bring a drifting boat to rest at the origin; success if it lies still there at the end."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.speed, self.steps = self.np_random.uniform(-0.1, 0.1, 2), 0
        return self.observe(), {}

    def observe(self):
        return np.concatenate([self.place, self.speed]).astype(np.float32)

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.05 * np.asarray(action)
        self.place, self.steps = self.place + self.speed, self.steps + 1
        away = float(np.linalg.norm(self.place))
        still = away < 0.1 and float(np.linalg.norm(self.speed)) < 0.05
        # A time limit truncates: the value of what would follow is still counted.
        return self.observe(), -away, False, self.steps >= 50, {"is_success": still}


check_env(Dock())
agent = rescore.Agent("dpmd", Dock, training=TRAINING, **SMALL)
agent.learn(STEPS, evaluate=False)
agent.save("dock")
agent = rescore.Agent.load("dock", env=Dock)  # a class has no id to be found by
agent.learn(STEPS // 2, evaluate=False)
print(agent.evaluate(episodes=3).summary())
