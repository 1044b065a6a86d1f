"""
SB3's ``DummyVecEnv`` and ``VecNormalize`` with the same numbers, to the bit, in less time.

Beside a small environment their step is mostly :func:`copy.deepcopy`, and means and variances of a handful of numbers. Here
what cannot change is not copied, and the moments are taken without numpy's general functions.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

#: types whose values cannot change, and need not be copied
CONSTANT = frozenset((bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64))


class Infos(list[dict[str, Any]]):
    """What environments tell of a step. A deep copy copies only what may change."""

    def __deepcopy__(self, memo: dict[int, Any]) -> list[dict[str, Any]]:
        return [
            {key: value if type(value) in CONSTANT else deepcopy(value, memo) for key, value in info.items()}
            if type(info) is dict
            else deepcopy(info, memo)
            for info in self
        ]


class LeanDummyVecEnv(DummyVecEnv):
    """
    ``DummyVecEnv`` with cheaper copies of what the environments return.

    :param env_fns: functions that make the environments
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(env_fns)
        self.buf_infos = Infos(self.buf_infos)

    def _obs_from_buf(self) -> VecEnvObs:
        if self.keys == [None]:
            return self.buf_obs[None].copy()  # type: ignore[index]  # SB3's key of what is no Dict
        return super()._obs_from_buf()


class LeanMoments(RunningMeanStd):
    """
    Running mean and variance with fewer calls of numpy. It is pickled and copied as SB3's.

    :param moments: the mean and variance so far
    """

    def __init__(self, moments: RunningMeanStd) -> None:
        self.mean, self.var, self.count = moments.mean, moments.var, moments.count

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningMeanStd, (), vars(self)

    def update(self, arr: np.ndarray) -> None:
        n = len(arr)
        if arr.dtype.kind != "f" or n == 0:
            super().update(arr)
        elif n == 1:  # its own mean, and no variance
            mean, var, count = self.mean, self.var, self.count
            delta = arr[0] - mean
            total = count + 1
            self.mean = mean + delta / total
            self.var = (var * count + delta * delta * count / total) / total
            self.count = total
        else:
            batch_mean = np.add.reduce(arr, axis=0) / n
            delta = arr - batch_mean
            self.update_from_moments(batch_mean, np.add.reduce(delta * delta, axis=0) / n, n)


class LeanVecNormalize(VecNormalize):
    """``VecNormalize`` with cheaper moments and copies. It is pickled and copied as SB3's."""

    @classmethod
    def like(cls, env: VecNormalize) -> LeanVecNormalize:
        """
        Make one in the place of another.

        :param env: the other, whose settings, statistics and environments it takes over
        """
        made = cls.__new__(cls)
        made.__setstate__(env.__getstate__())
        made.set_venv(env.venv)
        made.returns = env.returns.copy()
        made.ret_rms = LeanMoments(env.ret_rms)
        if env.norm_obs and isinstance(env.obs_rms, RunningMeanStd):
            made.obs_rms = LeanMoments(env.obs_rms)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return VecNormalize.__new__, (VecNormalize,), self.__getstate__()

    def normalize_obs(self, obs: Any) -> Any:
        if self.norm_obs and isinstance(self.obs_rms, RunningMeanStd):
            return self._normalize_obs(obs, self.obs_rms).astype(np.float32)
        return super().normalize_obs(obs)

    def _normalize_obs(self, obs: np.ndarray, obs_rms: RunningMeanStd) -> np.ndarray:
        return _clip((obs - obs_rms.mean) / np.sqrt(obs_rms.var + self.epsilon), self.clip_obs)

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        if self.norm_reward:
            reward = _clip(reward / np.sqrt(self.ret_rms.var + self.epsilon), self.clip_reward)
        return reward.astype(np.float32)


def _clip(x: np.ndarray, limit: float) -> np.ndarray:
    clipped: np.ndarray = np.minimum(np.maximum(x, -limit), limit)
    return clipped
