"""
Action masks under RL Zoo's commands. RL Zoo evaluates and enjoys with ``model.predict(obs)``, which says nothing about masks:
the class here asks the environment that is being acted in.
"""

import threading
from typing import Any

import gymnasium as gym
import numpy as np
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.ppo_mask import AveragingMaskablePPO

# Per thread, because Optuna runs trials in threads with --n-jobs.
_acting = threading.local()


def acts_in(env: VecEnv) -> VecEnv:
    """
    :param env: the environment that models of this thread are evaluated in from now on
    :return: the same
    """
    _acting.env = env
    return env


class ZooMaskablePPO(AveragingMaskablePPO):
    """
    AveragingMaskablePPO for RL Zoo: takes the masks of the environment it is evaluated in, and learns without masks where
    the environment has none.
    """

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        env = getattr(_acting, "env", None)
        if action_masks is None and env is not None and is_masking_supported(env):
            action_masks = get_action_masks(env)
        return super().predict(observation, state, episode_start, deterministic, action_masks)

    def learn(  # type: ignore[override]
        self, total_timesteps: int, callback: MaybeCallback = None, *, use_masking: bool | None = None, **kwargs: Any
    ) -> "ZooMaskablePPO":
        if use_masking is None:
            assert self.env is not None
            use_masking = is_masking_supported(self.env)
        return super().learn(total_timesteps, callback, use_masking=use_masking, **kwargs)


class MaskFromInfo(gym.Wrapper):
    """
    Offers ``action_masks()``, as sb3-contrib expects it, for environments that report a mask in ``info["action_mask"]``, as
    Gymnasium's Taxi does.

    :param env: the environment
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._mask: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._note(info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._note(info)
        return obs, reward, terminated, truncated, info

    def _note(self, info: dict[str, Any]) -> None:
        if "action_mask" not in info:
            raise ValueError(f'{self.env} reports no info["action_mask"], which MaskFromInfo needs.')
        self._mask = np.asarray(info["action_mask"], dtype=bool)

    def action_masks(self) -> np.ndarray:
        """
        :return: which actions are possible in the present state
        """
        if self._mask is None:
            raise RuntimeError("action_masks() was called before reset().")
        return self._mask
