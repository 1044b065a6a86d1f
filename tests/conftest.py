"""Small environments that the tests share, and the example. Import them with ``from conftest import ClockEnv``."""

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

EXAMPLE = Path(__file__).parents[1] / "examples" / "correct_your_own_algorithm.py"
_spec = importlib.util.spec_from_file_location("correct_your_own_algorithm", EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
#: the example of somebody's own algorithm, as a module
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small networks are faster on one thread, and tests that run side by side do not fight for cores."""
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)


@pytest.fixture(autouse=True)
def _ray_keeps_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers would give way to every other process, and on a busy machine hardly get on."""
    monkeypatch.setenv("RAY_worker_niceness", "0")


class ClockEnv(gym.Env):
    """
    The observation tells the time t/T and nothing else; with ``tells=False`` it is constant.

    :param length: T, number of steps of an episode
    :param tells: whether the observation tells the time
    :param reward: reward of every step
    :param truncates: whether episodes end by a time limit instead of termination
    :param shape: shape of the observation
    :param continuous: Box actions in place of Discrete ones
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        length: int = 20,
        tells: bool = True,
        reward: float = 1.0,
        truncates: bool = False,
        shape: tuple[int, ...] = (1,),
        continuous: bool = False,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous else spaces.Discrete(2)
        self.length, self.tells, self.reward, self.truncates = length, tells, reward, truncates
        self.t = 0

    def _observation(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.t / self.length if self.tells else 1.0, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= self.length
        return self._observation(), self.reward, over and not self.truncates, over and self.truncates, {}


class FaultyEnv(ClockEnv):
    """
    A clock whose step number ``at`` (counted over episodes) goes wrong.

    :param at: which step, counted from 1
    :param fault: ``"reward"`` or ``"observation"``: put ``value`` there; an exception: raise it
    :param value: NaN or infinity
    """

    def __init__(self, at: int, fault: Any, value: float = np.nan, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at, self.fault, self.value, self.count = at, fault, value, 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.count == self.at:
            if self.fault == "reward":
                reward = self.value
            elif self.fault == "observation":
                observation = np.full_like(observation, self.value)
            else:
                raise self.fault
        return observation, reward, terminated, truncated, info


class SpaceEnv(gym.Env):
    """
    Random observations of any space, reward that depends on the action; every other episode ends by a time limit.

    :param observation_space: observation space
    :param action_space: action space, two discrete actions by default
    :param length: number of steps of an episode
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space | None = None, length: int = 13) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.length = length
        self.t = self.episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.episodes = 0
        self.t = 0
        self.episodes += 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over, by_limit = self.t >= self.length, self.episodes % 2 == 0
        return self.observation_space.sample(), float(np.mean(action)), over and not by_limit, over and by_limit, {}


#: one space of every kind that SB3's policies take
SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict({"vector": spaces.Box(-1.0, 1.0, (3,), np.float32), "kind": spaces.Discrete(3)}),
    "dict_image": spaces.Dict(
        {"vector": spaces.Box(-1.0, 1.0, (2,), np.float32), "image": spaces.Box(0, 255, (36, 36, 1), np.uint8)}
    ),
}


def space_env(kind: str, action_space: spaces.Space | None = None, length: int = 13) -> SpaceEnv:
    """
    :param kind: key of :data:`SPACES`
    :param action_space: action space
    :param length: number of steps of an episode
    :return: an environment with that observation space, its own copy, so that seeding one does not seed another
    """
    return SpaceEnv(copy.deepcopy(SPACES[kind]), action_space, length)


def policy_for(kind: str) -> str:
    """
    :param kind: key of :data:`SPACES`
    :return: the policy alias that SB3's documentation names for it
    """
    return {"image": "CnnPolicy", "dict": "MultiInputPolicy", "dict_image": "MultiInputPolicy"}.get(kind, "MlpPolicy")
