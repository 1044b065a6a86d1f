"""
Action masks under RL Zoo's commands. RL Zoo evaluates and enjoys with ``model.predict(obs)``, which says nothing about masks:
the class here asks the environment that is being acted in.
"""

import threading
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_avgcorr.ppo_mask import AveragingMaskablePPO

# Per thread, because Optuna runs trials in threads with --n-jobs.
_acting = threading.local()


def acts_in(env: VecEnv) -> VecEnv:
    """
    Say where models of this thread act from now on.

    :param env: the environment
    :return: the same
    """
    _acting.env = env
    return env


class MaskSource(VecEnvWrapper):
    """
    Says that the model acts here whenever episodes are begun here. It stands in the settings of a run (``vec_env_wrapper``),
    so that RL Zoo's commands make it.

    :param venv: the environments
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)

    @classmethod
    def name(cls) -> str:
        """
        Name the class as RL Zoo's settings do.

        :return: its dotted name
        """
        return f"{cls.__module__}.{cls.__qualname__}"

    def reset(self) -> VecEnvObs:
        acts_in(self)
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


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
        env: Any = getattr(_acting, "env", None)
        if action_masks is None and env is None:
            warnings.warn(
                "No environment was named whose action masks are to be obeyed: all actions are taken for possible. A run of "
                f"an earlier version lacks 'vec_env_wrapper: {MaskSource.name()}' in its config.yml.",
                stacklevel=2,
            )
        elif action_masks is None and is_masking_supported(env):
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
        Tell which actions are possible in the present state.

        :return: a truth value for each action
        """
        if self._mask is None:
            raise RuntimeError("action_masks() was called before reset().")
        return self._mask
