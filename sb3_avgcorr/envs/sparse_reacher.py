"""dm_control's reacher with a sparse reward: -1 per step until the fingertip is in the target."""

from typing import Any

import numpy as np

from sb3_avgcorr.envs.dm_control_env import FlatDmControlEnv, set_pickle_args

# dm_control_env has made sure that the package is there.
from dm_control.rl import control  # isort: skip
from dm_control.suite import reacher  # isort: skip
from dm_control.suite.utils import randomizers  # isort: skip

FASTEST = 25.0  # rad/s, more than the motors can do


class SparseReacher(reacher.Reacher):
    """dm_control's reacher task, paid -1 per step and over when the fingertip touches the target."""

    def get_reward(self, physics: reacher.Physics) -> float:
        return -1.0

    def get_termination(self, physics: reacher.Physics) -> float | None:
        # What "reached" means is dm_control's: its own reward is 1 inside the target and 0 outside.
        return 0.0 if super().get_reward(physics) == 1.0 else None

    def place_arm(self, physics: reacher.Physics) -> None:
        """
        Put the arm at rest in a random pose. The target is part of the model, not of the state, and stays.

        :param physics: the simulator
        """
        with physics.reset_context():
            randomizers.randomize_limited_and_rotational_joints(physics, self.random)


class SparseReacherEnv(FlatDmControlEnv):
    """
    dm_control ``reacher`` changed as in Che, Vasan and Mahmood (2023), appendix G.2. Every step costs 1 and the
    episode terminates when the fingertip is in the target. Whenever ``timeout`` steps have not been enough, the arm is
    moved to a random pose, the target stays and the episode goes on. A new target is drawn by ``reset`` only.

    The observation is joint angles (2), vector from fingertip to target (2), joint velocities (2). ``info`` has
    ``"timeouts"``, how many there were in this episode, ``"timed_out"``, whether this step ended in one, and
    ``"is_success"``, whether the target has been reached.

    :param task: ``"easy"`` (target radius 0.05 m) or ``"hard"`` (0.015 m)
    :param timeout: steps of 0.02 s until the arm is moved
    :param render_mode: ``"rgb_array"``, ``"human"``, ``"depth_array"``, ``"multi_camera"`` or None
    :param width: width of rendered pictures in pixels
    :param height: height of rendered pictures in pixels
    """

    def __init__(
        self,
        task: str = "easy",
        timeout: int = 500,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
    ) -> None:
        sizes = {"easy": reacher._BIG_TARGET, "hard": reacher._SMALL_TARGET}
        if task not in sizes:
            raise ValueError(f"task is {task!r}; it must be 'easy' or 'hard'")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, np.integer)) or timeout < 1:
            raise ValueError(f"timeout is {timeout!r}; it must be a whole number of steps, 1 or more")
        physics = reacher.Physics.from_xml_string(*reacher.get_model_and_assets())
        env = control.Environment(physics, SparseReacher(sizes[task]))
        # The shoulder turns without limit, so how far is a matter of time. The motors' 0.05 N·m against a damping of
        # 0.01 N·m·s make some 7 rad/s; the arm is 0.24 m long, the target at most 0.2 m from its root.
        turn = np.pi + FASTEST * env.control_timestep() * timeout
        super().__init__(env, [turn, 4.0, 0.45, 0.45, FASTEST, FASTEST], render_mode, width, height)
        set_pickle_args(self, task=task, timeout=timeout, render_mode=render_mode, width=width, height=height)
        self.timeout = timeout
        self._timeouts = 0
        self._steps_in_try = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._timeouts = self._steps_in_try = 0
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"timeouts": 0, "timed_out": False, "is_success": False}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, reached, truncated, _ = super().step(action)
        self._steps_in_try += 1
        timed_out = not reached and self._steps_in_try >= self.timeout
        if timed_out:
            self._env.task.place_arm(self._env.physics)
            obs = self._flat(self._env.task.get_observation(self._env.physics))
            self._timeouts += 1
            self._steps_in_try = 0
        return obs, reward, reached, truncated, {"timeouts": self._timeouts, "timed_out": timed_out, "is_success": reached}
