"""Tasks of Gymnasium's that our settings and studies need."""

import gymnasium as gym
import numpy as np
import pytest

from sb3_avgcorr.envs import register_envs

register_envs()


MUJOCO = ["HalfCheetah", "Ant", "Walker2d", "Swimmer", "Hopper", "InvertedDoublePendulum", "Reacher"]
CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]


@pytest.mark.filterwarnings("ignore:.*out of date.*")
@pytest.mark.parametrize("env_id", [f"{name}-v{version}" for name in MUJOCO for version in (4, 5)] + CLASSIC)
def test_gymnasiums_tasks_work(env_id: str) -> None:
    env = gym.make(env_id)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(10):
        assert env.observation_space.contains(obs)
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert np.isfinite(float(reward))
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
