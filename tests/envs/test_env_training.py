"""AveragingPPO on the registered tasks: it runs on all of them, and learns UR5Reacher within 20,000 steps."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.envs import ENV_IDS, register_envs

register_envs()


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_runs(env_id: str) -> None:
    env = gym.make(env_id)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "MlpPolicy"
    model = AveragingPPO(policy, env, n_steps=256, batch_size=64, n_epochs=2, seed=0, device="cpu")
    model.learn(512)
    assert np.isfinite(model.correction_weights).all()
    assert model.num_timesteps == 512


@pytest.mark.slow
def test_improves_on_ur5_reacher() -> None:
    """
    Reward a step, last fifth against first. The gain was between 1.17 and 2.76 on the seeds 0 to 5, so 0.5 leaves room.
    There is no such test for PointMass: 20,000 steps did not suffice there (docs/environments.md).
    """
    venv = VecNormalize(make_vec_env("avgcorr/UR5Reacher-v0", n_envs=4, seed=0), norm_obs=True, norm_reward=False)
    model = AveragingPPO("MlpPolicy", venv, n_steps=250, batch_size=100, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu")
    rewards: list[float] = []

    def note(local: dict[str, Any], _: dict[str, Any]) -> bool:
        rewards.append(float(local["rewards"].mean()))
        return True

    model.learn(20_000, callback=note)
    first, *_, last = (part.mean() for part in np.array_split(np.array(rewards), 5))
    assert last > first + 0.5
