"""Finite MDPs: sampling, Gymnasium's tables, chains that are not irreducible, size and input."""

import subprocess
import sys
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import scipy.sparse as sp
import torch as th
from exact_gradients import check_theorem, corner, finite_difference, two_state
from numpy.typing import NDArray
from scipy.special import softmax

from sb3_avgcorr.tabular import (
    FiniteMDP,
    differentiable_J,
    policy_probabilities,
    random_mdp,
    torch_gradient,
)

Array = NDArray[np.float64]


@pytest.mark.parametrize("termination", [0.0, 0.2])
@pytest.mark.parametrize("horizon", [None, 7])
def test_sampling_follows_the_tables(termination: float, horizon: int | None) -> None:
    mdp = random_mdp(4, 3, 0.9, 5, branching=2, termination=termination)
    pi = np.random.default_rng(1).dirichlet(np.ones(3), size=4)
    pi[0] = [0, 1, 0]
    samples = mdp.sample(pi, 30, 4000, horizon=horizon, rng=0)
    np.testing.assert_array_equal(samples.rewards, mdp.r[samples.states, samples.actions])
    s, a, t = (x[:-1].ravel() for x in (samples.states, samples.actions, samples.steps))
    following, t_next = samples.states[1:].ravel(), samples.steps[1:].ravel()
    over = t_next == 0
    assert (t_next[~over] == t[~over] + 1).all()
    assert (samples.steps[0] == 0).all()
    if horizon is not None:
        assert t.max() == horizon - 1

    def check(drawn: NDArray[np.int64], n: int, p: Array) -> None:
        share = np.bincount(drawn, minlength=len(p)) / n
        assert (np.abs(share - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-12).all()  # so exactly 0 where p is

    for state in range(4):
        check(a[s == state], (s == state).sum(), pi[state])
    inside = np.full(len(s), True) if horizon is None else t < horizon - 1
    P = mdp.P.toarray().reshape(4, 3, 4)
    for state, action in [(0, 1), (1, 0), (2, 2), (3, 1)]:
        here = inside & (s == state) & (a == action)
        assert here.sum() > 100
        check(over[here].astype(int), here.sum(), np.array([1 - termination, termination]))
        check(following[here & ~over], here.sum(), P[state, action])
    assert over.any() == (termination > 0 or horizon is not None)
    if over.any():
        check(following[over], over.sum(), mdp.rho)
    again = mdp.sample(pi, 30, 4000, horizon=horizon, rng=0)
    np.testing.assert_array_equal(samples.states, again.states)


def test_long_samples_have_the_computed_distributions() -> None:
    for mdp in (corner(0.9), FiniteMDP.from_gymnasium("FrozenLake-v1", 0.9)):
        pi = mdp.uniform_policy()
        for horizon, expected in ((None, mdp.d_pi(pi)), (40, mdp.d_T(pi, 40))):
            states = mdp.sample(pi, 2000, 500, horizon=horizon, rng=0).states[400:]
            share = np.bincount(states.ravel(), minlength=mdp.n_states) / states.size
            np.testing.assert_allclose(share, expected, atol=2e-3)


# -- Gymnasium's tables --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "env_id, n_states, missing",
    [
        ("FrozenLake-v1", 11, {5, 7, 11, 12, 15}),  # four holes and the goal: the episode is over there
        ("CliffWalking-v1", 37, {*range(37, 48)}),  # the cliff sends back to the start, the goal ends
        ("Taxi-v4", 400, {s for s in range(500) if (s // 4) % 5 == s % 4}),  # the passenger is where he wants to be
    ],
)
def test_gymnasium_tables(env_id: str, n_states: int, missing: set[int]) -> None:
    mdp = FiniteMDP.from_gymnasium(env_id, 0.95)
    assert mdp.n_states == n_states
    whole = FiniteMDP.from_gymnasium(gym.make(env_id), 0.95, reachable_only=False)
    assert set(range(whole.n_states)) - set(mdp.state_ids.tolist()) == missing
    pi = mdp.uniform_policy()
    mdp.check_irreducible(pi)
    check_theorem(mdp, np.random.default_rng(0).normal(size=mdp.r.shape), np.random.default_rng(1))
    # The states left out change nothing for the others, and are reported where they are not left out.
    uniform = whole.uniform_policy()
    np.testing.assert_allclose(whole.d_pi(uniform)[mdp.state_ids], mdp.d_pi(pi), atol=1e-12)
    np.testing.assert_allclose(whole.v(uniform)[mdp.state_ids], mdp.v(pi), atol=1e-9)
    assert np.isnan(whole.c(uniform)[sorted(missing)]).all()
    with pytest.raises(ValueError, match=r"not irreducible.*unreachable states"):
        whole.check_irreducible(uniform)


def test_frozen_lake_played_for_real() -> None:
    env = gym.make("FrozenLake-v1")
    mdp = FiniteMDP.from_gymnasium(env, 0.9)
    pi = mdp.uniform_policy()
    rng = np.random.default_rng(0)
    counts, total, episodes = np.zeros(16), 0.0, 3000
    for episode in range(episodes):
        state, _ = env.reset(seed=episode)
        over, discount = False, 1.0
        while not over:
            counts[state] += 1
            state, reward, terminated, truncated, _ = env.step(int(rng.integers(4)))
            over = terminated or truncated
            total += discount * float(reward)
            discount *= 0.9
    np.testing.assert_allclose(counts[mdp.state_ids] / counts.sum(), mdp.d_T(pi, 100), atol=0.01)
    assert counts[mdp.state_ids].sum() == counts.sum()
    assert total / episodes == pytest.approx(mdp.rho @ mdp.v(pi), rel=0.5)


def test_gymnasium_without_a_table() -> None:
    with pytest.raises(ValueError, match=r"transition table `env.unwrapped.P`"):
        FiniteMDP.from_gymnasium("CartPole-v1", 0.9)


# -- chains that are not irreducible -------------------------------------------------------------------------------------
def test_two_recurrent_classes_are_reported() -> None:
    P = np.zeros((4, 1, 4))
    P[0, 0, [1, 2]] = 0.5
    P[1, 0, 1] = P[2, 0, 3] = P[3, 0, 2] = 1
    mdp = FiniteMDP(P, np.zeros((4, 1)), [1, 0, 0, 0], 0.9)
    pi = np.ones((4, 1))
    with pytest.raises(ValueError, match=r"2 recurrent classes \[1\], \[2, 3\]|2 recurrent classes \[2, 3\], \[1\]"):
        mdp.d_pi(pi)
    # Started inside one of them, there is only that one.
    inside = FiniteMDP(P, np.zeros((4, 1)), [0, 0, 1, 0], 0.9)
    np.testing.assert_allclose(inside.d_pi(pi), [0, 0, 0.5, 0.5], atol=1e-14)
    assert inside.classes(pi).unreachable.tolist() == [0, 1]


def test_transient_states() -> None:
    """0 → 1 ⇄ 2, started in 0, and 3 never visited: d_π is 0 in 0 and 3, and c is not defined there."""
    P = np.zeros((4, 1, 4))
    P[0, 0, 1] = P[1, 0, 2] = P[2, 0, 1] = P[3, 0, 0] = 1
    mdp = FiniteMDP(P, np.ones((4, 1)), [1, 0, 0, 0], 0.5)
    pi = np.ones((4, 1))
    np.testing.assert_allclose(mdp.d_pi(pi), [0, 0.5, 0.5, 0], atol=1e-14)
    np.testing.assert_allclose(mdp.d_gamma(pi), [1 / 2, 1 / 3, 1 / 6, 0], atol=1e-14)
    np.testing.assert_allclose(mdp.c(pi), [np.inf, 2 / 3, 1 / 3, np.nan], atol=1e-13)
    np.testing.assert_array_equal(np.isinf(mdp.recurrence_times(pi)), [True, False, False, True])
    classes = mdp.classes(pi)
    assert [members.tolist() for members in classes.recurrent] == [[1, 2]]
    assert (classes.transient.tolist(), classes.unreachable.tolist()) == ([0], [3])
    with pytest.raises(ValueError, match=r"\[1, 2\], transient states \[0\], unreachable states \[3\]"):
        mdp.check_irreducible(pi)
    smaller = mdp.restrict_to_reachable()
    assert smaller.state_ids.tolist() == [0, 1, 2]
    np.testing.assert_allclose(smaller.d_gamma(pi[:3]), mdp.d_gamma(pi)[:3])
    np.testing.assert_array_equal(smaller.observations, np.eye(3))


def test_episodes_that_may_never_end() -> None:
    """From 0 the episode ends or falls into 1 for good: in the long run everything is 1."""
    mdp = FiniteMDP([[[0, 0.5]], [[0, 1]]], np.ones((2, 1)), [1, 0], 1.0, termination=[[0.5], [0]])
    pi = np.ones((2, 1))
    np.testing.assert_allclose(mdp.d_pi(pi), [0, 1])
    with pytest.raises(ValueError, match=r"gamma=1 needs episodes that end: states \[1\] are never left"):
        mdp.v(pi)


def test_a_chain_that_nearly_falls_apart_is_refused() -> None:
    P = np.array([[[1 - 1e-14, 1e-14]], [[1e-13, 1 - 1e-13]]])
    with pytest.raises(ValueError, match="nearly falls apart"):
        FiniteMDP(P, np.zeros((2, 1)), [1, 0], 0.9).d_pi(np.ones((2, 1)))


def test_gamma_one() -> None:
    mdp = random_mdp(4, 2, 1.0, 0, termination=0.25)
    pi = mdp.uniform_policy()
    np.testing.assert_allclose(mdp.c(pi), 1)
    np.testing.assert_allclose(mdp.v(pi), mdp.with_gamma(1 - 1e-9).v(pi), atol=1e-6)
    for method in (mdp.J, mdp.occupancy, mdp.gradient):
        with pytest.raises(ValueError, match="does not exist at gamma=1"):
            method(pi)
    assert mdp.gradient(pi, mdp.d_pi(pi)).shape == (4, 2)
    with pytest.raises(ValueError, match="gamma=1"):
        differentiable_J(mdp, th.as_tensor(pi))


# -- size and input ------------------------------------------------------------------------------------------------------
def big_grid(gamma: float, side: int = 100) -> FiniteMDP:
    """DotReacher with a side of 100: sparse but for the jumps from the centre."""
    n, states = side * side, np.arange(side * side)
    column, row = np.divmod(states, side)
    matrices = []
    for dx, dy in [(1, 0), (-1, 0), (0, 1), (0, -1)]:
        target = np.clip(column + dx, 0, side - 1) * side + np.clip(row + dy, 0, side - 1)
        keep = states != n // 2
        jump = sp.coo_array((np.full(n, 1 / n), (np.full(n, n // 2), states)), shape=(n, n))
        matrices.append(sp.coo_array((np.ones(n - 1), (states[keep], target[keep])), shape=(n, n)) + jump)
    return FiniteMDP(matrices, np.random.default_rng(0).normal(size=(n, 4)), np.eye(1, n)[0], gamma)


def line(gamma: float) -> FiniteMDP:
    n = 10_000
    matrices = [
        sp.coo_array((np.ones(n), (np.arange(n), np.clip(np.arange(n) + step, 0, n - 1))), shape=(n, n)) for step in (1, -1)
    ]
    return FiniteMDP(matrices, np.random.default_rng(0).normal(size=(n, 2)), np.eye(1, n)[0], gamma)


@pytest.mark.parametrize(
    "make",
    [
        big_grid,
        line,
        lambda gamma: random_mdp(10_000, 4, gamma, 0, branching=5),
        lambda gamma: random_mdp(10_000, 4, gamma, 0, branching=5, termination=0.01),
    ],
    ids=["grid", "line", "random", "random-ending"],
)
def test_ten_thousand_states_take_seconds(make: Callable[[float], FiniteMDP]) -> None:
    mdp = make(0.99)
    pi = mdp.uniform_policy()
    start = time.process_time()
    d_pi, d_gamma, c, gradient = mdp.d_pi(pi), mdp.d_gamma(pi), mdp.c(pi), mdp.gradient(pi)
    assert time.process_time() - start < 20  # measured: 0.4 to 1.6 on one core
    P, ends = mdp.P_pi(pi), mdp.termination_pi(pi)
    np.testing.assert_allclose(P.T @ d_pi + (ends @ d_pi) * mdp.rho, d_pi, atol=1e-15, rtol=1e-9)
    restarts = 1 - mdp.gamma * (1 - ends) @ d_gamma
    np.testing.assert_allclose(mdp.gamma * (P.T @ d_gamma) + restarts * mdp.rho, d_gamma, atol=1e-15, rtol=1e-9)
    assert d_pi @ c == pytest.approx(1, abs=1e-10)
    # One entry of the gradient against the difference of two exact solutions.
    s, a = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
    direction = np.zeros_like(pi)
    direction[s, a] = 1
    numerical = finite_difference(lambda x: mdp.J(softmax(x, axis=1)), np.zeros_like(pi), direction, h=0.05)
    assert numerical == pytest.approx(gradient[s, a], rel=1e-6)


def test_forms_of_input_agree() -> None:
    dense = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 2))
    r, rho = np.ones((3, 2)), [1, 0, 0]
    forms = [dense, [sp.csr_matrix(dense[:, a]) for a in range(2)], sp.csc_array(dense.reshape(6, 3))]
    for form in forms:
        np.testing.assert_array_equal(FiniteMDP(form, r, rho, 0.9).P.toarray(), dense.reshape(6, 3))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"P": np.full((2, 1, 2), 0.4)},
            r"termination\[s, a\] must be 1; in state 0, action 0, it is 0.8",
        ),
        ({"P": np.array([[[1.5, -0.5]], [[0.5, 0.5]]])}, "P must be non-negative"),
        ({"P": np.full((2, 2, 2), 0.5)}, r"P must have shape \(S, A, S\) = \(2, 1, 2\)"),
        ({"P": sp.eye_array(3)}, "a sparse P must have shape"),
        ({"P": [sp.eye_array(3)]}, "P must hold 1 matrices"),
        ({"r": [0.0, 1.0]}, "r must be finite, with shape"),
        ({"r": [[np.nan], [1.0]]}, "r must be finite"),
        ({"rho": [0.5, 0.6]}, "rho must hold probabilities that sum to 1; got sums from 1.1"),
        ({"rho": [[0.5, 0.5]]}, "rho must have shape"),
        ({"gamma": 1.5}, r"gamma must be in \(0, 1\]; got 1.5"),
        ({"gamma": 0.0}, "gamma must be in"),
        ({"termination": [0.0, 0.0]}, "termination must hold probabilities, with shape"),
        ({"termination": [[0.5], [0.5]]}, "must be 1; in state 0, action 0, it is 1.5"),
        ({"observations": np.eye(3)}, "observations must have one row a state"),
        ({"state_ids": [1]}, "state_ids must have one row a state"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    good = {"P": np.full((2, 1, 2), 0.5), "r": np.zeros((2, 1)), "rho": [0.5, 0.5], "gamma": 0.9}
    FiniteMDP(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        FiniteMDP(**{**good, **change})


def test_bad_policies_and_weights_are_named() -> None:
    mdp = two_state(0.9)
    with pytest.raises(ValueError, match=r"policy must have shape \(2, 2\)"):
        mdp.v([0.5, 0.5])
    with pytest.raises(ValueError, match="policy must hold probabilities"):
        mdp.v([[0.5, 0.6], [0.5, 0.5]])
    for weights in ([1.0], [np.inf, 1.0]):
        with pytest.raises(ValueError, match="state_weights must be finite, with shape"):
            mdp.gradient(mdp.uniform_policy(), weights)
    with pytest.raises(ValueError, match="horizon must be at least 1; got 0"):
        mdp.d_T(mdp.uniform_policy(), 0)
    with pytest.raises(ValueError, match="outputs must be"):
        policy_probabilities(mdp, th.nn.Linear(2, 2), "values")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must give a tensor of shape"):
        policy_probabilities(mdp, th.nn.Linear(2, 3))
    with pytest.raises(ValueError, match="parameters must be given"):
        torch_gradient(mdp, lambda observations: observations)
    with pytest.raises(ValueError, match="branching must be between"):
        random_mdp(3, 2, 0.9, branching=4)


def test_without_scipy() -> None:
    """The package and its finite environments need no SciPy; the exact solutions say that they do."""
    program = """
import sys
sys.modules["scipy"] = None
import sb3_avgcorr
from sb3_avgcorr.envs.dot_reacher import DotReacherEnv
DotReacherEnv().reset(seed=0)
try:
    import sb3_avgcorr.tabular
except ImportError as error:
    assert "needs SciPy: pip install 'sb3-avgcorr[experiments]'" in str(error), error
else:
    raise SystemExit("imported without SciPy")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
