"""The estimator fed with rollouts of a fixed policy in a finite MDP: the correction it learns, against the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs

from sb3_avgcorr.common.correction import lambda_returns
from sb3_avgcorr.common.critic import CriticLayers
from sb3_avgcorr.common.estimator import CorrectionEstimator
from sb3_avgcorr.common.options import CorrectionOptions
from sb3_avgcorr.fast import use_numpy
from sb3_avgcorr.tabular import FiniteMDP, Samples, residual_bias

Array = npt.NDArray[np.float64]


def observation_space(mdp: FiniteMDP) -> gym.Space[Any]:
    """
    Declare the space of an MDP's observations.

    :param mdp: the MDP
    :return: a Discrete space for numbers of states, a Box for vectors
    """
    observations = mdp.observations
    if np.issubdtype(observations.dtype, np.integer):
        return gym.spaces.Discrete(int(observations.max()) + 1)
    low, high = observations.min(axis=0).astype(np.float32), observations.max(axis=0).astype(np.float32)
    return gym.spaces.Box(low, high, dtype=np.float32)


def state_features(mdp: FiniteMDP) -> th.Tensor:
    """
    Compute what a critic's layers would see in each state.

    :param mdp: the MDP
    :return: features, one row a state
    """
    features = preprocess_obs(th.as_tensor(mdp.observations), observation_space(mdp))
    assert isinstance(features, th.Tensor)
    return features.float().flatten(1)


def make_estimator(mdp: FiniteMDP, rollout_size: int = 2048, seed: int = 0, **options: Any) -> CorrectionEstimator:
    """
    Make an estimator for rollouts of a finite MDP, with the layers of SB3's default policy.

    :param mdp: the MDP
    :param rollout_size: samples of a rollout
    :param seed: seed of its parameters, and of the order of the samples
    :param options: the correction's options
    :return: the estimator
    """
    chosen = CorrectionOptions(**options)
    features = state_features(mdp)
    with th.random.fork_rng():
        th.manual_seed(seed)
        critic = None
        if chosen.correction_network == "shared":
            actions = gym.spaces.Discrete(mdp.n_actions)
            critic = CriticLayers(ActorCriticPolicy(observation_space(mdp), actions, lambda _: 0.0))
        estimator = CorrectionEstimator(
            chosen,
            64 if critic else features.shape[1],
            mdp.gamma,
            rollout_size=rollout_size,
            critic=critic,
            rng=np.random.default_rng(seed),
        )
    if critic is None:
        use_numpy(estimator)
    return estimator


def rollouts(samples: Samples, n_steps: int) -> Iterator[Samples]:
    """
    Cut sampled trajectories into rollouts of ``n_steps``, each with the step that follows it.

    :param samples: the trajectories, one step longer than a multiple of ``n_steps``
    :param n_steps: steps per environment and rollout
    :return: the rollouts
    """
    for start in range(0, len(samples.steps) - 1, n_steps):
        yield Samples(*(array[start : start + n_steps + 1] for array in samples))  # type: ignore[arg-type]


def learn_from(estimator: CorrectionEstimator, mdp: FiniteMDP, rollout: Samples) -> Array:
    """
    Show a rollout to the estimator as an algorithm would.

    :param estimator: the estimator
    :param mdp: the MDP
    :param rollout: ``n_steps + 1`` steps of every environment, the last one only to tell where an episode ended
    :return: ĉ of each sample, shape (n_steps, n_envs)
    """
    options, steps = estimator.options, rollout.steps[:-1]
    features = state_features(mdp)[rollout.states[:-1].reshape(-1)]
    rate = options.correction_learning_rate
    assert isinstance(rate, float)

    def fit() -> None:
        zeros = np.zeros(steps.shape[1])
        values = np.zeros(steps.shape)
        # the critic's targets: Monte-Carlo, and nothing after the rollout
        ends = rollout.steps[-1] == 0
        returns = lambda_returns(rollout.rewards[:-1], values, steps == 0, zeros, ends, mdp.gamma, 1.0)
        shared = options.correction_network == "shared"
        coefficients = (0.1 / max(float(returns.var()), 0.1), 1.0) if options.correction_coef is None else (1.0, 1.0)
        estimator.fit(features, steps, rate, returns=returns if shared else None, coefficients=coefficients)

    estimator.observe(features, steps)
    if options.correction_order == "before":
        fit()
    weights = estimator.weights(features).reshape(steps.shape)
    if options.correction_order == "after":
        fit()
    return weights


def learned_residual_bias(
    mdp: FiniteMDP,
    policy: npt.ArrayLike,
    horizon: int,
    *,
    n_rollouts: int = 12,
    n_steps: int = 2048,
    n_envs: int = 1,
    seed: int = 0,
    samples: Samples | None = None,
    **options: Any,
) -> list[float]:
    """
    Measure the residual bias of the learned correction after each rollout of a fixed policy.

    :param mdp: the MDP
    :param policy: action probabilities, shape (S, A)
    :param horizon: time limit of an episode
    :param n_rollouts: number of rollouts
    :param n_steps: steps per environment and rollout
    :param n_envs: number of environments
    :param seed: seed of the estimator and the rollouts
    :param samples: steps to replay, ``n_rollouts * n_steps + 1`` of each environment; default: drawn with ``seed``
    :param options: the correction's options
    :return: the residual bias after each rollout
    """
    if samples is None:
        samples = mdp.sample(policy, n_rollouts * n_steps + 1, n_envs, horizon=horizon, rng=seed)
    estimator = make_estimator(mdp, n_steps * n_envs, seed, **options)
    d, d_gamma = mdp.d_T(policy, horizon), mdp.d_gamma(policy)
    result = []
    for rollout in rollouts(samples, n_steps):
        learn_from(estimator, mdp, rollout)
        result.append(residual_bias(estimator.ratio(state_features(mdp)), d, d_gamma))
    return result
