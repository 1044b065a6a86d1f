"""dm_control tasks through shimmy, with flat float32 observations."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

from sb3_avgcorr.envs._common import require, two_floats

require("mujoco", "dm_control", "shimmy")

from dm_control.rl import control  # noqa: E402
from shimmy.dm_control_compatibility import DmControlCompatibilityV0  # noqa: E402


class FlatDmControlEnv(DmControlCompatibilityV0):
    """
    A two-motor dm_control task as SB3 wants it. Shimmy does the rendering and the seeding; ``step`` and ``reset``
    are our own, because going from dm_env's dictionaries to one array through Gymnasium's flattening costs more than need be.

    :param env: the dm_control environment. Its own time limit should be off: the limit is Gymnasium's.
    :param obs_high: bounds of the observation, symmetric about 0; dm_control itself gives none
    :param render_mode: ``"rgb_array"``, ``"human"``, ``"depth_array"``, ``"multi_camera"`` or None
    :param width: width of rendered pictures in pixels
    :param height: height of rendered pictures in pixels
    """

    def __init__(
        self, env: control.Environment, obs_high: list[float], render_mode: str | None, width: int, height: int
    ) -> None:
        fps = round(1.0 / env.control_timestep())
        modes = DmControlCompatibilityV0.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode is {render_mode!r}; it must be None or one of {modes}")
        # Of the instance, since shimmy writes a frame rate of its own (milliseconds a step) into what it finds here.
        self.metadata = {"render_modes": modes, "render_fps": fps}
        super().__init__(env, render_mode=render_mode, render_kwargs={"width": width, "height": height, "camera_id": 0})
        self.metadata["render_fps"] = fps
        high = np.array(obs_high, np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        obs, _ = super().reset(seed=seed, options=options)
        return self._flat(obs), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        # The motors saturate at ±1 by themselves; cutting here keeps the tasks' control costs from seeing more than that.
        first, second = two_floats(action)
        if self._env._reset_next_step:
            # dm_control would quietly begin a new episode.
            raise ResetNeeded("the episode is over or has not begun: call reset() before step()")
        timestep = self._env.step(np.array((min(max(first, -1.0), 1.0), min(max(second, -1.0), 1.0))))
        if self.render_mode == "human":
            self.viewer.render(self.render_mode)
        return self._flat(timestep.observation), float(timestep.reward), timestep.discount == 0.0, False, {}

    @staticmethod
    def _flat(obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate(tuple(obs.values()), dtype=np.float32)


def set_pickle_args(env: EzPickle, **kwargs: Any) -> None:
    """
    Pickle ``env`` by its own arguments. Shimmy's constructor has noted *its* arguments, which are not those of our classes.

    :param env: the environment under construction, after shimmy's part
    :param kwargs: all its constructor's arguments
    """
    EzPickle.__init__(env, **kwargs)
