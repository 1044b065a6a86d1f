"""The correction that AveragingPPO learns with its default options, against the exact one."""

import numpy as np
import pytest

from sb3_avgcorr.envs.dot_reacher import DotReacherEnv
from sb3_avgcorr.studies.replay import learn_from, learned_residual_bias, make_estimator, rollouts, state_features
from sb3_avgcorr.tabular import FiniteMDP, Samples, residual_bias

SEEDS = 3


def residual(start: str, gamma: float, *, n_steps: int = 2048, n_envs: int = 1) -> float:
    """Mean over seeds after 12 rollouts of 2048 steps in episodes of 500, policy uniformly random."""
    mdp = DotReacherEnv(start=start).finite_mdp(gamma)
    policy = mdp.uniform_policy()
    # the seeds' trajectories are independent columns of one sample, which is much faster to draw
    drawn = mdp.sample(policy, 12 * n_steps + 1, SEEDS * n_envs, horizon=500, rng=0)
    last = []
    for seed in range(SEEDS):
        samples = Samples(*(array[:, seed * n_envs : (seed + 1) * n_envs] for array in drawn))
        last.append(learned_residual_bias(mdp, policy, 500, seed=seed, n_steps=n_steps, n_envs=n_envs, samples=samples)[-1])
    return float(np.mean(last))


@pytest.mark.parametrize(("gamma", "limit"), [(0.9, 0.15), (0.99, 0.22)])
def test_default_options_correct_a_concentrated_start(gamma: float, limit: float) -> None:
    assert residual("corner", gamma) <= limit


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_default_options_do_no_harm_where_there_is_nothing_to_correct(gamma: float) -> None:
    assert residual("uniform", gamma) <= 1.02


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_default_options_with_several_environments(gamma: float) -> None:
    # 8 environments in step: a rollout of 256 steps holds only part of an episode's 500
    assert residual("corner", gamma, n_steps=256, n_envs=8) <= 0.35


@pytest.mark.parametrize("gamma", [0.95, 0.99])
def test_clock_in_the_observation(gamma: float) -> None:
    """Where the observation is the time t/T itself, the correction is γ^t up to its mean."""
    horizon = 100
    i = np.arange(horizon)
    P = np.zeros((horizon, 2, horizon))
    P[i, :, np.minimum(i + 1, horizon - 1)] = 1.0
    observations = (i / horizon).astype(np.float32)[:, None]
    mdp = FiniteMDP(P, np.zeros((horizon, 2)), np.eye(horizon)[0], gamma, observations=observations)
    estimator = make_estimator(mdp)
    for rollout in rollouts(mdp.sample(mdp.uniform_policy(), 12 * 2048 + 1, horizon=horizon, rng=0), 2048):
        learn_from(estimator, mdp, rollout)
    exact = gamma**i / np.mean(gamma**i)
    learned = estimator.ratio(state_features(mdp))
    assert np.mean(np.abs(learned / learned.mean() - exact)) < 0.05


def test_residual_of_an_untrained_model_is_one() -> None:
    mdp = DotReacherEnv(start="corner").finite_mdp(0.9)
    policy = mdp.uniform_policy()
    c = make_estimator(mdp).ratio(state_features(mdp))
    assert residual_bias(c, mdp.d_T(policy, 500), mdp.d_gamma(policy)) == pytest.approx(1.0)
