"""Tasks of Gymnasium's that our settings and studies need."""

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from sb3_avgcorr.envs import ENV_IDS, register_envs

register_envs()

SIMULATED = [env_id for env_id in ENV_IDS if "Mass" in env_id or "Sparse" in env_id or "UR5" in env_id]
SPARSE = ["avgcorr/SparseReacherEasy-v0", "avgcorr/SparseReacherHard-v0"]
LIMITS = {"TwoState": 20, "DotReacher": 500, "PointMass": 1000, "Sparse": 10_000, "UR5": 100, "LongTail": None}


def run_python(code: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False
    )


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
