"""A real model fed with rollouts of a fixed policy in a finite MDP: the correction it learns, against the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.common.fast import evaluate
from sb3_avgcorr.ppo import AveragingPPO
from sb3_avgcorr.tabular import FiniteMDP, Samples, residual_bias

Array = npt.NDArray[np.float64]


class Spaces(gym.Env[Any, Any]):
    """
    What a model needs to know of an environment to be built, and nothing to step: the rollouts come from elsewhere.

    :param mdp: the finite MDP whose observations and actions are declared
    """

    def __init__(self, mdp: FiniteMDP) -> None:
        observations = mdp.observations
        if np.issubdtype(observations.dtype, np.integer):
            self.observation_space = gym.spaces.Discrete(int(observations.max()) + 1)
        else:
            low, high = observations.min(axis=0).astype(np.float32), observations.max(axis=0).astype(np.float32)
            self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.Discrete(mdp.n_actions)


def make_model(mdp: FiniteMDP, n_steps: int = 2048, n_envs: int = 1, seed: int = 0, **kwargs: Any) -> AveragingPPO:
    """
    An :class:`AveragingPPO` for rollouts of a finite MDP, its actor held fixed.

    :param mdp: the MDP
    :param n_steps: steps per environment and rollout
    :param n_envs: number of environments
    :param seed: seed of the model
    :param kwargs: further arguments of AveragingPPO
    """
    env = DummyVecEnv([lambda: Spaces(mdp)] * n_envs)
    model = AveragingPPO(
        "MlpPolicy",
        env,
        n_steps=n_steps,
        batch_size=min(64, n_steps * n_envs),
        gamma=mdp.gamma,
        seed=seed,
        device="cpu",
        **kwargs,
    )
    model.set_logger(Logger(None, []))
    for module in (model.policy.mlp_extractor.policy_net, model.policy.action_net):
        module.requires_grad_(False)
    return model


def fill(model: AveragingCorrection, mdp: FiniteMDP, samples: Samples) -> None:
    """
    Put sampled steps into the model's rollout buffer, as if it had collected them. A time limit counts as termination.

    :param model: the model
    :param mdp: the MDP they come from
    :param samples: ``n_steps + 1`` steps of every environment, the last one only to tell where an episode ended
    """
    buffer: Any = model.rollout_buffer
    buffer.pos, buffer.next_episode_steps = 0, samples.steps[0]
    buffer.reset()
    n = buffer.buffer_size
    buffer.observations[:] = np.reshape(mdp.observations[samples.states[:n]], buffer.observations.shape)
    buffer.actions[:] = samples.actions[:n, :, None]
    buffer.rewards[:] = samples.rewards[:n]
    buffer.episode_starts[:] = samples.steps[:n] == 0
    buffer.pos, buffer.full = n, True
    evaluate(model.policy, buffer, model.action_space)
    with th.no_grad():
        last = model.policy.predict_values(model.policy.obs_to_tensor(mdp.observations[samples.states[n]])[0])
    buffer.compute_returns_and_advantage(last_values=last, dones=samples.steps[n] == 0)
    assert (buffer.episode_steps == samples.steps[:n]).all()


def rollouts(samples: Samples, n_steps: int) -> Iterator[Samples]:
    """
    Cut sampled trajectories into rollouts of ``n_steps``, each with the step that follows it.

    :param samples: the trajectories, one step longer than a multiple of ``n_steps``
    :param n_steps: steps per environment and rollout
    """
    for start in range(0, len(samples.steps) - 1, n_steps):
        yield Samples(*(array[start : start + n_steps + 1] for array in samples))  # type: ignore[arg-type]


def predicted_correction(model: AveragingCorrection, mdp: FiniteMDP) -> Array:
    """ĉ(s) of every state, as the model sees it now."""
    return model.predict_correction(mdp.observations)


def learned_residual_bias(
    mdp: FiniteMDP,
    policy: npt.ArrayLike,
    horizon: int,
    *,
    n_rollouts: int = 12,
    n_steps: int = 2048,
    n_envs: int = 1,
    seed: int = 0,
    train: bool = False,
    samples: Samples | None = None,
    **kwargs: Any,
) -> list[float]:
    """
    Residual bias of the correction an AveragingPPO has learned after each rollout of a fixed policy.

    :param mdp: the MDP
    :param policy: action probabilities, shape (S, A)
    :param horizon: time limit of an episode
    :param n_rollouts: number of rollouts
    :param n_steps: steps per environment and rollout
    :param n_envs: number of environments
    :param seed: seed of the model and the rollouts
    :param samples: steps to replay, ``n_rollouts * n_steps + 1`` of each environment; default: drawn with ``seed``
    :param train: also let PPO's own update train the critic (the actor stays), and measure after it
    :param kwargs: further arguments of AveragingPPO
    """
    model = make_model(mdp, n_steps, n_envs, seed, **kwargs)
    if samples is None:
        samples = mdp.sample(policy, n_rollouts * n_steps + 1, n_envs, horizon=horizon, rng=seed)
    d, d_gamma = mdp.d_T(policy, horizon), mdp.d_gamma(policy)
    result = []
    for rollout in rollouts(samples, n_steps):
        fill(model, mdp, rollout)
        if train:
            model.train()
        else:
            model.policy.set_training_mode(False)
            model._weights(model._rollout())
        result.append(residual_bias(predicted_correction(model, mdp), d, d_gamma))
    return result
