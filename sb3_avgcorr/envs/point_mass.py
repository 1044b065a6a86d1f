"""dm_control's point_mass, easy."""

from sb3_avgcorr.envs.dm_control_env import FlatDmControlEnv, set_pickle_args

# dm_control_env has made sure that the package is there.
from dm_control import suite  # isort: skip


class PointMassEnv(FlatDmControlEnv):
    """
    dm_control ``point_mass`` ``easy``: push a mass on a plane to the target in the middle. The observation is
    position (2) and velocity (2), the reward dm_control's own, in [0, 1] per step. It never terminates; the registered
    environment is truncated after 1000 steps of 0.02 s.

    :param render_mode: ``"rgb_array"``, ``"human"``, ``"depth_array"``, ``"multi_camera"`` or None
    :param width: width of rendered pictures in pixels
    :param height: height of rendered pictures in pixels
    """

    def __init__(self, render_mode: str | None = None, width: int = 480, height: int = 480) -> None:
        env = suite.load("point_mass", "easy", task_kwargs={"time_limit": float("inf")})
        # Walls stand at 0.3 m; the motors' 0.1 N against a damping of 1 N·s/m allow 0.1 m/s.
        super().__init__(env, [0.4, 0.4, 0.2, 0.2], render_mode, width, height)
        set_pickle_args(self, render_mode=render_mode, width=width, height=height)
