"""The paper's tasks and our own as Gymnasium environments. Importing this imports no simulator; making an environment does."""

import gymnasium as gym

#: id -> (entry point, step limit, keyword arguments); the limit is None where the episode ends by itself
_SPECS: dict[str, tuple[str, int | None, dict[str, object]]] = {
    "avgcorr/TwoState-v0": ("sb3_avgcorr.envs.two_state:TwoStateEnv", 20, {}),
    "avgcorr/DotReacher-v0": ("sb3_avgcorr.envs.dot_reacher:DotReacherEnv", 500, {}),
    "avgcorr/PointMassEasy-v0": ("sb3_avgcorr.envs.point_mass:PointMassEnv", 1000, {}),
    "avgcorr/SparseReacherEasy-v0": ("sb3_avgcorr.envs.sparse_reacher:SparseReacherEnv", 10_000, {"task": "easy"}),
    "avgcorr/SparseReacherHard-v0": ("sb3_avgcorr.envs.sparse_reacher:SparseReacherEnv", 10_000, {"task": "hard"}),
    "avgcorr/UR5Reacher-v0": ("sb3_avgcorr.envs.ur5_reacher:UR5ReacherEnv", 100, {}),
    "avgcorr/LongTail-v0": ("sb3_avgcorr.envs.long_tail:LongTailEnv", None, {}),
    "avgcorr/LongTailContinuous-v0": ("sb3_avgcorr.envs.long_tail:LongTailContinuousEnv", None, {}),
    "avgcorr/LongTailReacher-v0": ("sb3_avgcorr.envs.long_tail_reacher:LongTailReacherEnv", None, {}),
    "avgcorr/Ring-v0": ("sb3_avgcorr.envs.ring:RingEnv", None, {}),
    "avgcorr/Carousel-v0": ("sb3_avgcorr.envs.carousel:CarouselEnv", None, {}),
}

ENV_IDS: tuple[str, ...] = tuple(_SPECS)


def register_envs() -> None:
    """
    Make the ids in ``ENV_IDS`` known to Gymnasium. May be called any number of times; an id somebody has
    registered already (also with settings of their own) is left as it is.
    """
    for env_id, (entry_point, max_episode_steps, kwargs) in _SPECS.items():
        if env_id not in gym.registry:
            gym.register(id=env_id, entry_point=entry_point, max_episode_steps=max_episode_steps, kwargs=kwargs)


__all__ = ["ENV_IDS", "register_envs"]
