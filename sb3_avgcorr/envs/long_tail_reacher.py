"""Gymnasium's Reacher with a target that moves away unseen: a physical task of the long-tail kind."""

from math import cos, hypot, pi, sin
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

from sb3_avgcorr.envs._common import require, two_floats
from sb3_avgcorr.envs.long_tail import DictObservation, check_long_tail

require("mujoco")

from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv  # noqa: E402

UNIT = 0.1  # m, of distances in observation and reward: the length of a link
RADIUS = (0.1, 0.2)  # m: the target's distance from the arm's root, inside its reach of 0.21
SECTOR = pi / 6  # rad to either side of the x axis: where targets are
SPEED = 10.0  # rad/s, of an action of 1
TORQUE = 200.0  # N·m, the motors' limit in Gymnasium's model; inertia (1 kg·m²) and damping (1 N·m·s) of a joint are 1
# What is observed in units of the above, with room: the joints overshoot a little and the elbow bounces off its stops.
SEEN = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.5, 4.5], np.float32)
TOLD = np.array([4.5, 4.5, 1.0, 1.0], np.float32)


class LongTailReacherEnv(ReacherEnv):
    """
    The two-joint arm of Gymnasium's ``Reacher-v5``, where the point that pays is the target that the actor sees for
    ``early`` steps only. After these, for the long tail of the episode, it is the target turned by ``180° · strength`` about
    the arm's root. Actions are the speeds of the two joints, in [-1, 1] for ±10 rad/s, within what the motors can do.

    The observation is a Dict. ``"observation"`` is for the actor, as in Reacher-v5: cosines and sines of the joints' angles,
    the target, the joints' speeds (10 rad/s), fingertip minus target (distances in units of 0.1 m). ``"privileged"`` is
    for the critic: fingertip minus the point that pays, the share of the episode that is over, and whether the step is an
    early one. Episodes start at rest in a random pose, which tells nothing about the time, and terminate after ``length``
    steps of 0.02 s.

    Reward: minus the distance of the fingertip from the point that pays, in units of 0.1 m.

    :param strength: how far the point that pays moves, 0 (it stays: no conflict) to 1 (to the other side)
    :param early: number of early steps
    :param length: number of steps of an episode
    :param kwargs: as for Gymnasium's MujocoEnv: ``render_mode``, ``width``, ``height``, ...
    """

    def __init__(self, strength: float = 0.5, early: int = 40, length: int = 120, **kwargs: Any) -> None:
        check_long_tail(strength, early, length)
        self.strength, self.early, self.length = float(strength), int(early), int(length)
        self._t = self.length
        super().__init__(**kwargs)
        # ReacherEnv has noted its own arguments for pickling, which are not ours.
        EzPickle.__init__(self, strength, early, length, **kwargs)
        self.observation_space: spaces.Dict = spaces.Dict(
            {
                "observation": spaces.Box(-SEEN, SEEN, dtype=np.float32),
                "privileged": spaces.Box(np.array([-4.5, -4.5, 0.0, 0.0], np.float32), TOLD, dtype=np.float32),
            }
        )

    def reset_model(self) -> DictObservation:  # type: ignore[override]
        angle, radius = self.np_random.uniform((-SECTOR, RADIUS[0]), (SECTOR, RADIUS[1]))
        pose = self.np_random.uniform((-pi, -2.5), (pi, 2.5))  # the elbow turns by ±3 rad
        late = angle + pi * self.strength
        self.goal = radius * np.array((cos(angle), sin(angle)))
        self._late_goal = radius * np.array((cos(late), sin(late)))
        self._t = 0
        self.set_state(np.concatenate((pose, self.goal)), np.zeros(4))
        return self._observation()

    def step(self, action: np.ndarray) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        if self._t >= self.length:
            raise ResetNeeded("the episode is over or has not begun: call reset() before step()")
        speeds = SPEED * np.clip(two_floats(action), -1.0, 1.0)
        # The torque that takes the joints to these speeds within the step and holds them against the damping, as far as the
        # motors can: some 4 rad/s a step.
        torque = (speeds - self.data.qvel[:2]) / self.dt + speeds
        self.do_simulation(np.clip(torque / TORQUE, -1.0, 1.0), self.frame_skip)
        x, y = self._tip() - self._paying()
        self._t += 1
        if self.render_mode == "human":
            self.render()
        return self._observation(), -hypot(x, y) / UNIT, self._t >= self.length, False, {}

    def _tip(self) -> np.ndarray:
        return self.data.body("fingertip").xpos[:2]

    def _paying(self) -> np.ndarray:
        return self.goal if self._t < self.early else self._late_goal

    def _observation(self) -> DictObservation:
        q, v, tip = self.data.qpos[:2], self.data.qvel[:2], self._tip()
        seen = np.concatenate((np.cos(q), np.sin(q), self.goal / UNIT, v / SPEED, (tip - self.goal) / UNIT))
        told = (*((tip - self._paying()) / UNIT), self._t / self.length, self._t < self.early)
        return {"observation": seen.astype(np.float32), "privileged": np.array(told, dtype=np.float32)}
