"""UR-Reacher-2 (Mahmood et al., 2018) with a simulated UR5."""

from math import copysign, cos, exp, hypot, radians, sin
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from sb3_avgcorr.envs._common import require, two_floats

require("mujoco")

import mujoco  # noqa: E402
from gymnasium.envs.mujoco import MujocoEnv  # noqa: E402

MODEL_PATH = Path(__file__).parent / "assets" / "ur5.xml"

HOME = (1.58724391, -2.4, 1.5, -0.71790582, 1.63685572, 1.00910473)  # rad, all six joints at reset
DT = 0.04  # s, one action
SPEED_MAX = 0.3  # rad/s
ACCEL_MAX = 1.4  # rad/s²
BOX_LOW, BOX_HIGH = (-0.2, -0.3, 0.5), (0.2, 0.4, 1.0)  # m
JOINTS_LOW, JOINTS_HIGH = (radians(-180.0), radians(-120.0)), (radians(-60.0), radians(130.0))  # joints 2 and 3
TURN_BACK_SPEED = 0.1  # rad/s, as on the real robot
BUFFER = 0.001  # m and rad: how far inside the bounds the guard already acts, as on the real robot
RAMP = ACCEL_MAX * DT  # the most a joint's speed can change in one action
# One action and the braking after it turn a joint by at most 0.044 rad and so move the fingertip by at most
# 0.044 · (0.94 + 0.52) m: further than this from every bound no action can be unsafe.
FAR_JOINT, FAR_BOX = 0.05, 0.08


class UR5ReacherEnv(MujocoEnv, EzPickle):
    """
    Move the fingertip of a UR5 to a target in the y-z plane by the speeds of its second and third joint; the other
    joints are held. The robot and its servos are a MuJoCo model with the UR5's geometry and masses.

    Observation (8): angles of joints 2 and 3 (rad), their speeds / 0.3, fingertip minus target in y and z (m), the
    previous action / 0.3 rad/s. Reward: ``(-d + exp(-d² / 0.01)) · 0.04 / 0.008`` with ``d`` the y-z distance in metres.
    It never terminates; the registered environment is truncated after 100 steps (4 s).

    The joints stay in their limits and the fingertip in the safety box (to within a millimetre): where an action would
    take the arm to where it can no longer stop in time, the arm is turned back instead, at 0.1 rad/s, and
    ``info["turned_back"]`` is True. ``info["distance"]`` is ``d``. ``reset(options={"target": (y, z)})`` chooses the target.

    :param normalize_action: True: actions are in [-1, 1] and stand for speeds in ±0.3 rad/s, as SB3 recommends. False:
        actions are the speeds themselves
    :param render_mode: ``"rgb_array"``, ``"human"``, ``"depth_array"``, ``"rgbd_tuple"`` or None
    :param width: width of rendered pictures in pixels
    :param height: height of rendered pictures in pixels
    """

    metadata = {  # noqa: RUF012 (Gymnasium's convention)
        "render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"],
        "render_fps": 25,
    }

    def __init__(
        self, normalize_action: bool = True, render_mode: str | None = None, width: int = 640, height: int = 480
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode is {render_mode!r}; it must be None or one of {self.metadata['render_modes']}")
        EzPickle.__init__(self, normalize_action, render_mode, width, height)
        reach = np.array(BOX_HIGH) - np.array(BOX_LOW)
        high = np.array([*JOINTS_HIGH, 1.0, 1.0, reach[1], reach[2], 1.0, 1.0], np.float32)
        low = np.array([*JOINTS_LOW, -1.0, -1.0, -reach[1], -reach[2], -1.0, -1.0], np.float32)
        super().__init__(
            model_path=str(MODEL_PATH),
            frame_skip=10,
            observation_space=spaces.Box(low, high, dtype=np.float32),
            render_mode=render_mode,
            width=width,
            height=height,
            camera_name="side",
        )
        # MujocoEnv takes the action space from the actuators, of which the agent has two of six.
        self._action_scale = SPEED_MAX if normalize_action else 1.0
        bound = SPEED_MAX / self._action_scale
        self.action_space: gym.Space = spaces.Box(-bound, bound, (2,), np.float32)
        # Views into the simulator's memory, taken once: looking them up costs as much as a time step.
        self._qpos, self._ctrl = self.data.qpos, self.data.ctrl[1:3]
        self._q23, self._v23 = self.data.qpos[1:3], self.data.qvel[1:3]
        self._tip = self.data.site("fingertip").xpos
        self._tip_view = self._tip[1:3]
        self._planar = self._planar_kinematics()
        self._target = (0.0, 0.0)
        self._previous = (0.0, 0.0)
        self._speed = (0.0, 0.0)  # that the servos of joints 2 and 3 hold
        self._q, self._tip_yz = HOME[1:3], (0.0, 0.0)  # of joints 2 and 3, of the fingertip, as last observed

    def _planar_kinematics(self) -> list[list[float]]:
        """
        With the other joints held, y and z of the fingertip are ``k0 + k1 cos q2 + k2 sin q2 + k3 cos(q2+q3) +
        k4 sin(q2+q3)``. The guard asks for them several times a step, so the constants are taken from the model once.
        """
        poses = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (0.0, 2.0), (-1.0, 3.0)]
        rows, points = [], []
        for q2, q3 in poses:
            self._qpos[:] = HOME
            self._qpos[1:3] = q2, q3
            mujoco.mj_kinematics(self.model, self.data)
            rows.append([1.0, cos(q2), sin(q2), cos(q2 + q3), sin(q2 + q3)])
            points.append(self._tip[1:3].copy())
        return np.linalg.lstsq(np.array(rows), np.array(points), rcond=None)[0].T.tolist()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        if options is not None and "target" in options:
            y, z = two_floats(options["target"])
            if not (BOX_LOW[1] <= y <= BOX_HIGH[1] and BOX_LOW[2] <= z <= BOX_HIGH[2]):
                raise ValueError(f"target is {(y, z)}; (y, z) must be in the safety box {BOX_LOW[1:]}...{BOX_HIGH[1:]}")
            self._target = (y, z)
        else:
            y, z = self.np_random.uniform(BOX_LOW[1:], BOX_HIGH[1:]).tolist()
            self._target = (y, z)
        obs = self.reset_model()
        info = {"distance": hypot(*obs[4:6].tolist()), "turned_back": False}
        if self.render_mode == "human":
            self.render()
        return obs, info

    def reset_model(self) -> np.ndarray:
        mujoco.mj_resetData(self.model, self.data)
        self._qpos[:] = HOME
        self._previous = self._speed = (0.0, 0.0)
        mujoco.mj_forward(self.model, self.data)
        # In x the target is drawn where the fingertip is: x takes no part in the task.
        self.data.mocap_pos[0] = self._tip[0], *self._target
        mujoco.mj_kinematics(self.model, self.data)
        return self._observe()[0]

    def step(  # type: ignore[override] # MujocoEnv has numpy's scalars where Gymnasium has Python's
        self, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        first, second = two_floats(action)
        scale = self._action_scale
        first = min(max(first * scale, -SPEED_MAX), SPEED_MAX)
        second = min(max(second * scale, -SPEED_MAX), SPEED_MAX)
        self._previous = (first, second)
        v2, v3 = self._speed
        new2, new3, turned_back = self._guard(v2, v3, first, second)
        # The servos take accelerations and hold the speed they arrive at.
        self._ctrl[0], self._ctrl[1] = (new2 - v2) / DT, (new3 - v3) / DT
        self._speed = (new2, new3)
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        # After mj_step positions in space are those of one time step ago.
        mujoco.mj_kinematics(self.model, self.data)
        obs, distance = self._observe()
        reward = (exp(-(distance**2) / 0.01) - distance) * (DT / 0.008)
        if self.render_mode == "human":
            self.render()
        return obs, reward, False, False, {"distance": distance, "turned_back": turned_back}

    def _observe(self) -> tuple[np.ndarray, float]:
        """The observation and the distance from fingertip to target."""
        q2, q3 = self._q23.tolist()
        v2, v3 = self._v23.tolist()
        y, z = self._tip_view.tolist()
        self._q, self._tip_yz = (q2, q3), (y, z)
        dy, dz = y - self._target[0], z - self._target[1]
        a2, a3 = self._previous
        obs = np.array((q2, q3, v2 / SPEED_MAX, v3 / SPEED_MAX, dy, dz, a2 / SPEED_MAX, a3 / SPEED_MAX), np.float32)
        return obs, hypot(dy, dz)

    # -- safety ------------------------------------------------------------------------------------------------

    def _guard(self, v2: float, v3: float, want2: float, want3: float) -> tuple[float, float, bool]:
        """
        The speeds to have at the end of this action, and whether the agent was overruled. An action passes if after
        it the arm can still be braked to a stand inside the bounds. If it does not, the arm is turned back, and if
        even that goes too far on its way, it brakes; braking is safe because it was safe to take the previous action.

        :param v2: speed of joint 2
        :param v3: speed of joint 3
        :param want2: speed the agent wants for joint 2
        :param want3: speed the agent wants for joint 3
        """
        new2, new3 = _ramp(v2, want2), _ramp(v3, want3)
        (q2, q3), (y, z) = self._q, self._tip_yz
        if (
            JOINTS_LOW[0] + FAR_JOINT < q2 < JOINTS_HIGH[0] - FAR_JOINT
            and JOINTS_LOW[1] + FAR_JOINT < q3 < JOINTS_HIGH[1] - FAR_JOINT
            and BOX_LOW[1] + FAR_BOX < y < BOX_HIGH[1] - FAR_BOX
            and BOX_LOW[2] + FAR_BOX < z < BOX_HIGH[2] - FAR_BOX
        ):
            return new2, new3, False
        way_in = self._way_in(q2, q3, v2, v3, new2, new3)
        if way_in is None:
            return new2, new3, False
        size = hypot(*way_in) or 1.0
        back2 = _ramp(v2, TURN_BACK_SPEED * way_in[0] / size)
        back3 = _ramp(v3, TURN_BACK_SPEED * way_in[1] / size)
        if self._way_in(q2, q3, v2, v3, back2, back3) is None:
            return back2, back3, True
        return _ramp(v2, 0.0), _ramp(v3, 0.0), True

    def _way_in(self, q2: float, q3: float, v2: float, v3: float, new2: float, new3: float) -> tuple[float, float] | None:
        """
        Where the arm would be after this action and where it would stand after braking at once: None if both are inside
        the bounds, otherwise the direction in joint space that leads back in.
        """
        after2, after3 = q2 + (v2 + new2) * DT / 2, q3 + (v3 + new3) * DT / 2
        stop2, stop3 = after2 + _braking_distance(new2), after3 + _braking_distance(new3)
        out2, out3 = _outside(stop2, JOINTS_LOW[0], JOINTS_HIGH[0]), _outside(stop3, JOINTS_LOW[1], JOINTS_HIGH[1])
        if out2 or out3:
            return -out2, -out3
        # x needs no look: over the whole range of both joints it stays within 0.08...0.12 m (tested).
        (y0, y1, y2, y3, y4), (z0, z1, z2, z3, z4) = self._planar
        for a, b in ((stop2, stop3), (after2, after3)):
            c2, s2, c23, s23 = cos(a), sin(a), cos(a + b), sin(a + b)
            out_y = _outside(y0 + y1 * c2 + y2 * s2 + y3 * c23 + y4 * s23, BOX_LOW[1], BOX_HIGH[1])
            out_z = _outside(z0 + z1 * c2 + z2 * s2 + z3 * c23 + z4 * s23, BOX_LOW[2], BOX_HIGH[2])
            if out_y or out_z:
                # Minus the Jacobian's transpose times the way out: the joint motion that goes most directly back.
                dy3, dz3 = y4 * c23 - y3 * s23, z4 * c23 - z3 * s23
                dy2, dz2 = dy3 + y2 * c2 - y1 * s2, dz3 + z2 * c2 - z1 * s2
                return -(dy2 * out_y + dz2 * out_z), -(dy3 * out_y + dz3 * out_z)
        return None


def _ramp(speed: float, wanted: float) -> float:
    """The speed one action later under the acceleration limit."""
    return speed + min(max(wanted - speed, -RAMP), RAMP)


def _braking_distance(speed: float) -> float:
    """Signed way from ``speed`` to a stand: actions at the full limit, then one that takes off the rest."""
    size = abs(speed)
    rest = size % RAMP
    return copysign((size * size - rest * rest) / (2 * ACCEL_MAX) + rest * DT / 2, speed)


def _outside(value: float, low: float, high: float) -> float:
    """How far ``value`` is outside, signed; 0 inside."""
    if value > high - BUFFER:
        return value - high + BUFFER
    if value < low + BUFFER:
        return value - low - BUFFER
    return 0.0
