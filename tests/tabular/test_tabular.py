"""Finite MDPs solved exactly, and the paper's statements checked against them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch as th
from exact_gradients import check_theorem, corner, mdps_and_logits, restart_chain, two_state
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax
from stable_baselines3 import PPO

from sb3_avgcorr.envs.dot_reacher import DotReacherEnv
from sb3_avgcorr.tabular import (
    FiniteMDP,
    differentiable_J,
    error_bound_size,
    policy_probabilities,
    random_mdp,
    residual_bias,
    tabular_correction,
    torch_gradient,
    total_variation,
)

Array = NDArray[np.float64]


@given(mdps_and_logits(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_theorem_on_random_mdps(case: tuple[FiniteMDP, Array], seed: int) -> None:
    check_theorem(*case, np.random.default_rng(seed))


@pytest.mark.parametrize("gamma", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("make", [two_state, corner, lambda gamma: DotReacherEnv().finite_mdp(gamma)])
def test_theorem_on_the_papers_environments(make: Callable[[float], FiniteMDP], gamma: float) -> None:
    rng = np.random.default_rng(0)
    mdp = make(gamma)
    check_theorem(mdp, rng.normal(size=mdp.r.shape), rng)


def test_uncorrected_gradient_is_another_one() -> None:
    mdp = corner(0.9)
    pi = softmax(np.random.default_rng(0).normal(size=mdp.r.shape), axis=1)
    exact, uncorrected = mdp.gradient(pi), mdp.gradient(pi, mdp.d_pi(pi))
    cosine = (exact * uncorrected).sum() / np.linalg.norm(exact) / np.linalg.norm(uncorrected)
    assert cosine < 0.9  # measured: 0.82


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("theta", [-2.0, 0.0, 0.7])
def test_two_states_that_share_their_parameter(gamma: float, theta: float) -> None:
    """By hand: J = (2p-1)(1-γ)/(1+γ), d_{π,γ} = (1, γ)/(1+γ), and the uncorrected gradient is 0."""
    mdp = two_state(gamma)
    parameter = th.tensor(theta, dtype=th.float64, requires_grad=True)

    def policy(observations: th.Tensor) -> th.Tensor:
        assert observations.dtype == th.float64
        return th.stack([th.zeros_like(parameter), parameter]).expand(len(observations), 2)

    pi = policy_probabilities(mdp, policy).detach().numpy()
    p = 1 / (1 + np.exp(-theta))
    np.testing.assert_allclose(pi[:, 1], p)
    assert mdp.J(pi) == pytest.approx((2 * p - 1) * (1 - gamma) / (1 + gamma), abs=1e-14)
    np.testing.assert_allclose(mdp.d_pi(pi), [0.5, 0.5], atol=1e-14)
    np.testing.assert_allclose(mdp.d_gamma(pi), np.array([1, gamma]) / (1 + gamma), atol=1e-14)
    np.testing.assert_allclose(mdp.c(pi), np.array([2, 2 * gamma]) / (1 + gamma), atol=1e-14)
    np.testing.assert_allclose(mdp.c(pi, horizon=20), np.array([2, 2 * gamma]) / (1 + gamma), atol=1e-14)

    (uncorrected,) = torch_gradient(mdp, policy, mdp.d_pi(pi), parameters=[parameter])
    (corrected,) = torch_gradient(mdp, policy, mdp.d_pi(pi) * mdp.c(pi), parameters=[parameter])
    assert abs(uncorrected.item()) < 1e-15
    assert corrected.item() == pytest.approx(2 * p * (1 - p) * (1 - gamma) / (1 + gamma), abs=1e-13)


def test_gradient_of_a_module_and_of_an_sb3_policy() -> None:
    mdp = corner(0.9)
    th.manual_seed(0)
    network = th.nn.Sequential(th.nn.Linear(2, 6), th.nn.Tanh(), th.nn.Linear(6, 8)).double()
    expected = th.autograd.grad(differentiable_J(mdp, policy_probabilities(mdp, network)), list(network.parameters()))
    for actual, gradient in zip(torch_gradient(mdp, network), expected, strict=True):
        th.testing.assert_close(actual, gradient, atol=1e-10, rtol=0)
    as_probabilities = th.nn.Sequential(network, th.nn.Softmax(dim=-1))
    for actual, gradient in zip(torch_gradient(mdp, as_probabilities, outputs="probabilities"), expected, strict=True):
        th.testing.assert_close(actual, gradient, atol=1e-10, rtol=0)

    # SB3's policies are float32, and so their gradients are exact to that only.
    policy = PPO("MlpPolicy", DotReacherEnv(), n_steps=64, batch_size=64, seed=0).policy
    pi = policy_probabilities(mdp, policy)
    expected_sb3 = th.autograd.grad(differentiable_J(mdp, pi), list(policy.parameters()), allow_unused=True)
    actual_sb3 = torch_gradient(mdp, policy)
    for (name, _), actual, gradient in zip(policy.named_parameters(), actual_sb3, expected_sb3, strict=True):
        assert (actual == 0).all() == (gradient is None) == ("value" in name), name
        if gradient is not None:
            th.testing.assert_close(actual, gradient, atol=1e-8, rtol=1e-4)


def test_sb3_policy_on_a_gymnasium_table() -> None:
    """Observations are the environment's own state numbers, also where states were left out."""
    mdp = FiniteMDP.from_gymnasium("FrozenLake-v1", 0.9)
    policy = PPO("MlpPolicy", "FrozenLake-v1", n_steps=64, batch_size=64, seed=0).policy
    pi = policy_probabilities(mdp, policy).detach().numpy()
    for row, state in zip(pi, mdp.state_ids, strict=True):
        expected = policy.get_distribution(policy.obs_to_tensor(np.array([state]))[0]).distribution.probs
        np.testing.assert_allclose(row, expected[0].detach().numpy(), atol=1e-6)


# -- c, the distributions, recurrence times ------------------------------------------------------------------------------
@given(mdps_and_logits())
@settings(max_examples=60, deadline=None)
def test_c_is_a_density_ratio_and_a_recurrence_time(case: tuple[FiniteMDP, Array]) -> None:
    mdp, logits = case
    pi = softmax(logits, axis=1)
    d_pi, d_gamma, c = mdp.d_pi(pi), mdp.d_gamma(pi), mdp.c(pi)
    P = restart_chain(mdp, pi)
    np.testing.assert_allclose(d_pi @ P, d_pi, atol=1e-12)
    np.testing.assert_allclose(d_gamma @ (mdp.gamma * P) + (1 - mdp.gamma) * mdp.rho, d_gamma, atol=1e-12)
    assert d_pi @ c == pytest.approx(1, abs=1e-12)
    # First-step analysis: steps until the chain is in s again, with no stationary distribution in sight.
    times = np.empty(mdp.n_states)
    for s in range(mdp.n_states):
        until = P.copy()
        until[:, s] = 0
        times[s] = np.linalg.solve(np.eye(mdp.n_states) - until, np.ones(mdp.n_states))[s]
    np.testing.assert_allclose(mdp.recurrence_times(pi), times, rtol=1e-9)
    np.testing.assert_allclose(c, times * d_gamma, rtol=1e-9)
    assert (c <= times).all()


@given(mdps_and_logits(), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_lemma_of_appendix_g4(case: tuple[FiniteMDP, Array], near: float) -> None:
    """TV(d_{π,γ}, d_π) is at most TV(ρ, d_π); also for starts mixed with d_π, so close to it."""
    mdp, logits = case
    pi = softmax(logits, axis=1)
    rho = near * mdp.d_pi(pi) + (1 - near) * mdp.rho
    mixed = FiniteMDP(mdp.P, mdp.r, rho, mdp.gamma, termination=mdp.termination)
    d_pi = mixed.d_pi(pi)
    assert total_variation(mixed.d_gamma(pi), d_pi) <= total_variation(rho, d_pi) + 1e-12


@given(mdps_and_logits(), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_finite_horizon_by_adding_up(case: tuple[FiniteMDP, Array], horizon: int) -> None:
    mdp, logits = case
    pi = softmax(logits, axis=1)
    P = mdp.P_pi(pi).toarray()
    p = [mdp.rho @ np.linalg.matrix_power(P, t) for t in range(horizon)]
    visits, discounted = sum(p), sum(mdp.gamma**t * p_t for t, p_t in enumerate(p))
    np.testing.assert_allclose(mdp.d_T(pi, horizon), visits / np.sum(visits), atol=1e-12)
    np.testing.assert_allclose(mdp.expected_power(pi, horizon), discounted / visits, atol=1e-12)
    if not mdp.termination.any():
        np.testing.assert_allclose(np.sum(visits), horizon)


def test_finite_horizon_tends_to_the_limit() -> None:
    mdp = random_mdp(5, 2, 0.8, 0)
    pi = mdp.uniform_policy()
    np.testing.assert_allclose(mdp.d_T(pi, 20_000), mdp.d_pi(pi), atol=1e-4)
    np.testing.assert_allclose((1 - 0.8) * 20_000 * mdp.expected_power(pi, 20_000), mdp.c(pi), atol=1e-3)


@given(mdps_and_logits())
@settings(max_examples=40, deadline=None)
def test_values_satisfy_bellman(case: tuple[FiniteMDP, Array]) -> None:
    mdp, logits = case
    pi = softmax(logits, axis=1)
    v, q = mdp.v(pi), mdp.q(pi)
    np.testing.assert_allclose(v, (pi * q).sum(axis=1), atol=1e-9)
    dense = mdp.P.toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
    np.testing.assert_allclose(q, mdp.r + mdp.gamma * dense @ v, atol=1e-9)
    assert mdp.J(pi) == pytest.approx(mdp.occupancy(pi) @ mdp.r_pi(pi), abs=1e-10)


def test_ending_episodes_by_hand() -> None:
    """0 → 1, and 1 ends the episode with probability ½ or goes back to 0: lengths 2, 4, 6, ... with ½, ¼, ..."""
    gamma = 0.9
    mdp = FiniteMDP([[[0, 1]], [[0.5, 0]]], [[1], [0]], [1, 0], gamma, termination=[[0], [0.5]])
    pi = np.ones((2, 1))
    assert mdp.v(pi)[0] == pytest.approx(1 / (1 - gamma**2 / 2))
    np.testing.assert_allclose(mdp.d_pi(pi), [0.5, 0.5])
    np.testing.assert_allclose(mdp.d_gamma(pi), np.array([1, gamma]) / (1 + gamma))
    power = sum(0.5**n * gamma ** (2 * n) for n in range(1, 200))
    assert mdp.occupancy(pi).sum() == pytest.approx(1 - power)
    np.testing.assert_allclose(mdp.d_T(pi, 3), np.array([1.5, 1]) / 2.5)
    assert mdp.classes(pi).irreducible


# -- the estimate by counting --------------------------------------------------------------------------------------------
def within(mdp: FiniteMDP, pi: Array, k: int, T: int, epsilon: float, trials: int) -> float:
    """Share of the trials in which the corrected state distribution is within ε of d_{π,γ} everywhere."""
    samples = mdp.sample(pi, T, trials * k, rng=0)
    d_gamma, good = mdp.d_gamma(pi), 0
    for trial in range(trials):
        states, steps = (x[:, trial * k : (trial + 1) * k] for x in (samples.states, samples.steps))
        c_hat = (1 - mdp.gamma) * T * tabular_correction(states, steps, mdp.gamma, mdp.n_states)
        d_hat = np.bincount(states.ravel(), minlength=mdp.n_states) / states.size
        good += np.abs(np.where(d_hat > 0, d_hat * c_hat, 0) - d_gamma).max() <= epsilon
    return good / trials


def sticky_mdp(gamma: float) -> FiniteMDP:
    """Each state is kept for long, so that a trajectory says little: hard for the bound."""
    P = np.array([[[0.99, 0.01]], [[0.01, 0.99]]])
    return FiniteMDP(P, np.zeros((2, 1)), [0.5, 0.5], gamma)


@pytest.mark.parametrize("make", [sticky_mdp, two_state, lambda gamma: random_mdp(6, 2, gamma, 3)])
def test_error_bound(make: Callable[[float], FiniteMDP]) -> None:
    epsilon, delta = 0.1, 0.1
    mdp = make(0.8)
    k, T = error_bound_size(mdp.n_states, mdp.gamma, epsilon, delta)
    assert within(mdp, mdp.uniform_policy(), k, T, epsilon, trials=100) >= 1 - delta


def test_error_bound_needs_its_k_and_its_T() -> None:
    """The test above can fail: with far fewer trajectories, or shorter ones, the error is larger than ε too often."""
    mdp = sticky_mdp(0.8)
    k, T = error_bound_size(mdp.n_states, mdp.gamma, 0.1, 0.1)
    assert within(mdp, mdp.uniform_policy(), k // 30, T, 0.1, trials=100) < 0.9
    assert within(mdp, mdp.uniform_policy(), k, T // 4, 0.1, trials=100) < 0.9


def test_error_bound_size_by_hand() -> None:
    assert error_bound_size(10, 0.5, 0.5, 0.1) == (int(np.ceil(8 * np.log(100))), 2)


@pytest.mark.parametrize(
    "make, gamma",
    [(two_state, 0.7), (lambda gamma: random_mdp(5, 3, gamma, 1), 0.8), (corner, 0.9)],
    ids=["two_state", "random", "corner"],
)
def test_corrected_gradients_are_unbiased_and_averaging_varies_less(make: Callable[[float], FiniteMDP], gamma: float) -> None:
    """Gradients with sampled actions, from many small buffers of whole episodes long enough for γ^T not to matter."""
    mdp, n_buffers, k = make(gamma), 400, 20
    T = int(np.ceil(np.log(1e-4) / np.log(gamma)))
    rng = np.random.default_rng(0)
    pi = rng.dirichlet(np.full(mdp.n_actions, 2.0), size=mdp.n_states)
    q = mdp.q(pi)
    advantages = q - (pi * q).sum(axis=1, keepdims=True)
    samples = mdp.sample(pi, T, n_buffers * k, horizon=T, rng=rng)
    gradients: dict[str, list[Array]] = {"none": [], "power": [], "averaging": []}
    for i in range(n_buffers):
        s, a, t = (x[:, i * k : (i + 1) * k].ravel() for x in (samples.states, samples.actions, samples.steps))
        scale = (1 - gamma) * T
        weights = {
            "none": np.ones(len(s)),
            "power": scale * gamma**t,
            "averaging": scale * tabular_correction(s, t, gamma, mdp.n_states)[s],
        }
        for name, w in weights.items():
            # Mean of w ∇log π(a|s) A(s, a): with respect to the logits, ∇log π(a|s) is e_a - π(·|s) in row s.
            sums = np.bincount(s * mdp.n_actions + a, w, pi.size).reshape(pi.shape) * advantages / len(s)
            gradients[name].append(sums - pi * sums.sum(axis=1, keepdims=True))
    exact = mdp.gradient(pi)
    z, variance = {}, {}
    for name, values in gradients.items():
        stacked = np.array(values)
        standard_error = stacked.std(axis=0, ddof=1) / np.sqrt(n_buffers)
        moves = standard_error > 1e-15  # in DotReacher's centre all actions are the same: no advantage, no gradient
        np.testing.assert_allclose(stacked.mean(axis=0)[~moves], exact[~moves], atol=1e-12)
        z[name] = ((stacked.mean(axis=0) - exact) / np.where(moves, standard_error, 1))[moves]
        variance[name] = stacked.var(axis=0).sum()
    for name in ("power", "averaging"):
        assert np.abs(z[name]).max() < 4.5, name
        assert np.sqrt((z[name] ** 2).mean()) < 1.6, name
    assert np.abs(z["none"]).max() > 20
    assert variance["averaging"] < 0.8 * variance["power"]


def test_residual_bias_and_total_variation() -> None:
    assert total_variation([0.5, 0.5, 0], [0.25, 0.25, 0.5]) == 0.5
    mdp = corner(0.9)
    pi = mdp.uniform_policy()
    d_pi, d_gamma, c = mdp.d_pi(pi), mdp.d_gamma(pi), mdp.c(pi)
    assert residual_bias(17 * c, d_pi, d_gamma) == pytest.approx(0, abs=1e-12)
    assert residual_bias(np.full(81, 3.0), d_pi, d_gamma) == pytest.approx(1)
    assert residual_bias(1 / c, d_pi, d_gamma) > 1
    assert residual_bias([0.5, 1.5], [0.5, 0.5], [0.75, 0.25]) == pytest.approx(2)
    assert residual_bias([2, 1, np.nan], [0.5, 0.5, 0], [0.5, 0.25, 0.25]) == pytest.approx(total_variation(
        [2 / 3, 1 / 3, 0], [0.5, 0.25, 0.25]) / 0.25)  # fmt: skip
    assert np.isnan(residual_bias([1, 2], [0.5, 0.5], [0.5, 0.5]))
    for bad in ([0, 0], [-1, 2], [np.nan, 1], [np.inf, 1]):
        with pytest.raises(ValueError, match="c_hat must be finite"):
            residual_bias(bad, [0.5, 0.5], [0.75, 0.25])
    with pytest.raises(ValueError, match="same shape"):
        total_variation([1], [0.5, 0.5])


def test_tabular_correction_by_hand() -> None:
    estimate = tabular_correction([[0, 0], [2, 0]], [[0, 1], [1, 2]], 0.5, 3)
    np.testing.assert_array_equal(estimate, [(1 + 0.5 + 0.25) / 3, np.nan, 0.5])
