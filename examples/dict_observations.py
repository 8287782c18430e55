"""An environment of one's own with a dictionary of observations and a matrix of actions.

`predict` takes what the environment gives and returns what it takes, one or a batch. There is one
robot and no second copy of it: training goes on it, and so do the evaluations.
"""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

import rescore

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000


class Reach(gymnasium.Env):
    """Two joints to their goals; success once both are near."""

    observation_space = spaces.Dict(
        {
            "joints": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
            "goal": spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = spaces.Box(-0.5, 0.5, (2, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.angle, self.speed, self.steps = np.zeros(2), np.zeros(2), 0
        return self.observe(), {}

    def observe(self):
        joints = np.stack([self.angle, self.speed]).astype(np.float32)
        return {"joints": joints, "goal": self.goal}

    def step(self, action):
        self.speed, self.steps = action[:, 0], self.steps + 1
        self.angle = self.angle + self.speed
        gap = float(np.abs(self.angle - self.goal).max())
        ended = self.steps >= 10
        return self.observe(), -gap, False, ended, {"is_success": gap < 0.2}


robot = Reach()
small = {"hidden": (32, 32), "training": {"warmup": 100, "batch_size": 32, "eval_every": 0}}
agent = rescore.Agent("sac", robot, **small)
agent.learn(STEPS, evaluate=False)
observation, _ = robot.reset(seed=0)
action, _ = agent.predict(observation, deterministic=True)
assert robot.action_space.contains(action)
batch = {name: np.stack([part] * 3) for name, part in observation.items()}
assert agent.predict(batch)[0].shape == (3, 2, 1)
agent.eval_env = Reach()
print(agent.evaluate(episodes=5).summary())
