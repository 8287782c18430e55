"""Tiny tasks whose values are known, each of which catches one kind of mistake.

They are ordinary environments, `rescore/Probe1-v0` to `rescore/Probe5-v0` and
`rescore/ProbeTimeLimit-v0`. The idea of such a ladder is folklore: the first one that fails says
where to look.
"""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Probe(gymnasium.Env):
    """One number seen, one number done, one step long unless a subclass says otherwise."""

    metadata = {"render_modes": []}  # noqa: RUF012 as Gymnasium declares it
    signs: ClassVar[tuple[float, ...]] = (0.0,)  # observations an episode may begin with

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.sign = self.signs[0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = float(self.np_random.choice(self.signs))
        return self._obs(), {}

    def step(self, action):
        return self._obs(), self.reward(float(action[0])), True, False, {}

    def reward(self, action: float) -> float:
        raise NotImplementedError

    def _obs(self) -> np.ndarray:
        return np.array([self.sign], np.float32)


class Probe1(Probe):
    """Reward 1 whatever is done, once. Value 1: can the critic learn a constant?"""

    value: ClassVar[float] = 1.0

    def reward(self, action: float) -> float:
        return 1.0


class Probe2(Probe):
    """Reward = observation, -1 or 1. Value = observation: does the critic see what it is given?"""

    signs: ClassVar[tuple[float, ...]] = (-1.0, 1.0)

    @staticmethod
    def value(obs: float) -> float:
        return obs

    def reward(self, action: float) -> float:
        return self.sign


class Probe3(Probe):
    """Two steps seen as 0 and 1, reward 1 at the end. Values gamma and 1: is it discounted once?"""

    def step(self, action):
        ended = self.sign == 1.0
        self.sign = 1.0
        return self._obs(), float(ended), ended, False, {}

    @staticmethod
    def value(obs: float, gamma: float) -> float:
        return 1.0 if obs == 1.0 else gamma


class Probe4(Probe):
    """Reward -(a - 0.5)^2, once. Value 0 at the best action 0.5: does the policy climb?"""

    value: ClassVar[float] = 0.0
    best_action: ClassVar[float] = 0.5

    def reward(self, action: float) -> float:
        return -((action - self.best_action) ** 2)


class Probe5(Probe):
    """Reward -(a - obs / 2)^2, obs -1 or 1. Value 0 at obs / 2: does the policy look?"""

    signs: ClassVar[tuple[float, ...]] = (-1.0, 1.0)
    value: ClassVar[float] = 0.0

    @staticmethod
    def best_action(obs: float) -> float:
        return 0.5 * obs

    def reward(self, action: float) -> float:
        return -((action - self.best_action(self.sign)) ** 2)


class TimeLimitProbe(Probe):
    """Reward 1 for ever, cut after 5 steps that look alike. Value 1 / (1 - gamma).

    Only if the cut is bootstrapped: taken for an end, the values of the five states, which cannot
    be told apart, mix to something below 5.
    """

    limit: ClassVar[int] = 5

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.steps += 1
        return self._obs(), 1.0, False, self.steps >= self.limit, {}

    @staticmethod
    def value(gamma: float) -> float:
        return 1 / (1 - gamma)


PROBES = {
    **{
        f"rescore/Probe{i + 1}-v0": p
        for i, p in enumerate((Probe1, Probe2, Probe3, Probe4, Probe5))
    },
    "rescore/ProbeTimeLimit-v0": TimeLimitProbe,
}


def register() -> None:
    """Make the ids known to Gymnasium; again is fine."""
    for name in PROBES.keys() - gymnasium.registry.keys():
        gymnasium.register(name, entry_point=f"{__name__}:{PROBES[name].__name__}")
