"""The equations of the correction against numbers worked out by hand, against loops, and against SB3's own."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import SPACES, SpaceEnv
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stable_baselines3.common.buffers import RolloutBuffer
from torch import nn

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.correction import (
    CorrectionNetwork,
    RunningMean,
    Shrinkage,
    correction_targets,
    effective_sample_size,
    lambda_returns,
    linear_recurrence,
    parameter_average,
    ratio,
)

# Recurrence


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.data())
def test_recurrence_equals_a_loop(n_steps: int, n_envs: int, data: st.DataObject) -> None:
    numbers = st.floats(-2.0, 2.0)
    a = data.draw(arrays(np.float64, (n_steps, n_envs), elements=numbers))
    b = data.draw(arrays(np.float64, (n_steps, n_envs), elements=numbers))
    a_before, b_before = a.copy(), b.copy()
    y, loop = np.zeros(n_envs), []
    for t in range(n_steps):
        y = a[t] * y + b[t]
        loop.append(y)
    scale = 1.0 + np.abs(loop).max()
    np.testing.assert_allclose(linear_recurrence(a, b) / scale, np.array(loop) / scale, atol=1e-9)
    np.testing.assert_array_equal(a, a_before)
    np.testing.assert_array_equal(b, b_before)


def test_recurrence_checks_shapes() -> None:
    with pytest.raises(ValueError, match="same shape"):
        linear_recurrence(np.zeros((3, 1)), np.zeros((2, 1)))


# Targets of the correction


def test_targets_worked_out_by_hand() -> None:
    # γ = 0.5, λ = 0.5: y_t = 0.25·f(s_{t-1}) + 0.25·y_{t-1}
    steps = np.array([[0], [1], [2], [0], [1]])
    f = np.array([[0.8], [0.4], [0.2], [0.6], [0.1]])
    # 1; 0.2 + 0.25; 0.1 + 0.1125; 1; 0.15 + 0.25
    np.testing.assert_allclose(correction_targets(steps, f, 0.5, 0.5), [[1.0], [0.45], [0.2125], [1.0], [0.4]])


def test_targets_of_an_episode_that_spans_two_rollouts() -> None:
    f = np.array([[0.8], [0.4]])
    # first rollout t = 0, 1; second t = 2, 3. The second's first row, whose predecessor is gone, takes γ² = 0.25,
    # the next 0.25·0.8 + 0.25·0.25
    np.testing.assert_allclose(correction_targets(np.array([[0], [1]]), f, 0.5, 0.5), [[1.0], [0.45]])
    np.testing.assert_allclose(correction_targets(np.array([[2], [3]]), f, 0.5, 0.5), [[0.25], [0.2625]])


def test_targets_keep_environments_apart() -> None:
    rng = np.random.default_rng(0)
    steps = np.array([[0, 9], [1, 10], [2, 0], [0, 1], [1, 2]])
    f = rng.random((5, 2))
    together = correction_targets(steps, f, 0.9, 0.7)
    for env in range(2):
        np.testing.assert_allclose(together[:, [env]], correction_targets(steps[:, [env]], f[:, [env]], 0.9, 0.7))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_targets_equal_a_loop(n_steps: int, gamma: float, lambda_: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.random((n_steps, 2)) < 0.2
    steps, f = np.zeros((n_steps, 2), dtype=int), rng.random((n_steps, 2))
    steps[0] = np.where(starts[0], 0, rng.integers(0, 50, 2))
    for t in range(1, n_steps):
        steps[t] = np.where(starts[t], 0, steps[t - 1] + 1)
    y = [gamma ** steps[0].astype(float)]
    for t in range(1, n_steps):
        y.append(np.where(steps[t] == 0, 1.0, gamma * ((1.0 - lambda_) * f[t - 1] + lambda_ * y[-1])))
    targets = correction_targets(steps, f, gamma, lambda_)
    np.testing.assert_allclose(targets, y, rtol=1e-9, atol=1e-12)
    assert ((targets >= 0.0) & (targets <= 1.0)).all(), "cross-entropy needs targets in [0, 1]"


def test_monte_carlo_targets_are_the_powers_exactly() -> None:
    steps = np.random.default_rng(0).integers(0, 3000, (50, 3))
    np.testing.assert_array_equal(correction_targets(steps, np.full(steps.shape, np.nan), 0.993, 1.0), 0.993**steps)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.9, 1.0])
def test_the_powers_are_a_fixed_point(lambda_: float) -> None:
    # where the state tells the time, f = γ^t reproduces itself, whatever λ
    steps = np.arange(7, 27)[:, None]
    powers = 0.9**steps
    np.testing.assert_allclose(correction_targets(steps, powers, 0.9, lambda_), powers)


def test_targets_do_not_change_their_inputs() -> None:
    steps = np.array([[3], [4], [0]])
    correction_targets(steps, np.full((3, 1), 0.5), 0.9, 0.5)
    np.testing.assert_array_equal(steps, [[3], [4], [0]])


# Returns of the critic


def test_returns_worked_out_by_hand() -> None:
    arguments = (
        np.array([[1.0], [2.0], [3.0]]),
        np.array([[10.0], [20.0], [30.0]]),
        np.array([[1.0], [0.0], [1.0]]),
        np.array([40.0]),
        np.array([False]),
        0.5,
    )
    # λ = 1: the last row bootstraps 3 + 20; an episode ends after the second row: 2; 1 + 1
    np.testing.assert_allclose(lambda_returns(*arguments, 1.0), [[2.0], [2.0], [23.0]])
    # λ = 0: one step: 1 + 10; 2; 23
    np.testing.assert_allclose(lambda_returns(*arguments, 0.0), [[11.0], [2.0], [23.0]])
    # λ = 0.5: 1 + 0.5·(0.5·20 + 0.5·2)
    np.testing.assert_allclose(lambda_returns(*arguments, 0.5), [[6.5], [2.0], [23.0]])


@pytest.mark.parametrize("n_steps", [1, 2, 37])
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_returns_equal_sb3s(lambda_: float, n_steps: int) -> None:
    rng = np.random.default_rng(n_steps)
    buffer = RolloutBuffer(n_steps, SPACES["box"], spaces.Discrete(2), gamma=0.97, gae_lambda=lambda_, n_envs=3)
    buffer.rewards = rng.normal(size=(n_steps, 3)).astype(np.float32)
    buffer.values = rng.normal(size=(n_steps, 3)).astype(np.float32)
    buffer.episode_starts = (rng.random((n_steps, 3)) < 0.2).astype(np.float32)
    last_values, dones = rng.normal(size=3).astype(np.float32), np.array([True, False, False])
    buffer.compute_returns_and_advantage(th.as_tensor(last_values), dones)
    ours = lambda_returns(buffer.rewards, buffer.values, buffer.episode_starts, last_values, dones, 0.97, lambda_)
    np.testing.assert_allclose(ours, buffer.returns, rtol=1e-4, atol=1e-5)


# Weights


def test_ratio() -> None:
    np.testing.assert_allclose(ratio(np.array([0.1, 0.3])), [0.5, 1.5])
    np.testing.assert_array_equal(ratio(np.zeros(3)), np.ones(3))
    np.testing.assert_array_equal(ratio(np.full(1000, 0.1)).astype(np.float32), np.ones(1000))
    # tiny estimates are ratios too
    np.testing.assert_allclose(ratio(np.array([1e-300, 3e-300])), [0.5, 1.5])


def test_effective_sample_size() -> None:
    assert effective_sample_size(np.ones(10)) == 1.0
    assert effective_sample_size(np.eye(10)[0]) == pytest.approx(0.1)
    # (1 + 3)² / (2·(1 + 9))
    assert effective_sample_size(np.array([1.0, 3.0])) == pytest.approx(0.8)
    assert effective_sample_size(np.zeros(10)) == 0.0
    assert effective_sample_size(np.full((5, 2), 1e-30, dtype=np.float32)) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-3, 1e3)), st.floats(1e-3, 1e3))
def test_effective_sample_size_is_a_share_and_has_no_scale(weights: np.ndarray, scale: float) -> None:
    share = effective_sample_size(weights)
    assert 1.0 / len(weights) - 1e-9 <= share <= 1.0 + 1e-9
    assert effective_sample_size(scale * weights) == pytest.approx(share)


# Shrinkage


def episodes(n_episodes: int, length: int = 20, gamma: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and powers divided by their mean, of an environment with episodes of equal length."""
    steps = np.tile(np.arange(length), n_episodes)[:, None]
    return steps, ratio(gamma**steps)


def test_shrinkage_knows_nothing_at_first() -> None:
    shrinkage = Shrinkage(20_000.0)
    assert shrinkage.factor == 1.0
    steps, powers = episodes(5)
    shrinkage.update(np.ones(steps.shape), powers, steps)
    assert shrinkage.factor == 1.0, "a constant estimate says nothing about how good it is"


def test_shrinkage_leaves_a_perfect_estimate_alone() -> None:
    shrinkage = Shrinkage(20_000.0)
    steps, powers = episodes(20)
    shrinkage.update(powers, powers, steps)
    assert shrinkage.factor == pytest.approx(1.0)
    np.testing.assert_allclose(shrinkage(powers), powers)


def test_shrinkage_draws_noise_to_one() -> None:
    shrinkage, rng = Shrinkage(20_000.0), np.random.default_rng(0)
    steps, powers = episodes(100)
    for _ in range(5):
        shrinkage.update(ratio(rng.random(steps.shape)), powers, steps)
    assert shrinkage.factor < 0.1


def test_shrinkage_of_the_opposite_is_complete() -> None:
    shrinkage = Shrinkage(20_000.0)
    steps, powers = episodes(20)
    shrinkage.update(ratio(powers.max() - powers), powers, steps)
    assert shrinkage.factor == 0.0
    np.testing.assert_array_equal(shrinkage(np.array([0.0, 5.0])), [1.0, 1.0])


def test_shrinkage_does_not_trust_few_episodes() -> None:
    # the same quality of the estimate, seen on few and on many episodes
    def mean_factor(n_episodes: int) -> float:
        factors = []
        for seed in range(30):
            shrinkage, rng = Shrinkage(1e9), np.random.default_rng(seed)
            steps, powers = episodes(n_episodes)
            shrinkage.update(ratio(0.1 * powers + rng.random(steps.shape)), powers, steps)
            factors.append(shrinkage.factor)
        return float(np.mean(factors))

    assert mean_factor(3) < 0.9 * mean_factor(100)


def test_shrinkage_forgets() -> None:
    shrinkage, rng = Shrinkage(1000.0), np.random.default_rng(0)
    steps, powers = episodes(100)
    shrinkage.update(ratio(rng.random(steps.shape)), powers, steps)
    for _ in range(5):
        shrinkage.update(powers, powers, steps)
    assert shrinkage.factor > 0.95


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 3), st.integers(1, 4))
def test_shrinkage_keeps_weights_non_negative(seed: int, n_steps: int, n_envs: int, updates: int) -> None:
    shrinkage, rng = Shrinkage(20_000.0), np.random.default_rng(seed)
    for _ in range(updates):
        steps = rng.integers(0, 5, (n_steps, n_envs))
        shrinkage.update(ratio(rng.random((n_steps, n_envs)) ** 4), ratio(0.5**steps), steps)
    assert 0.0 <= shrinkage.factor <= 1.0
    weights = shrinkage(ratio(rng.random(50) ** 4))
    assert (weights >= 0.0).all()
    assert np.mean(weights) == pytest.approx(1.0)


# Averages over rollouts


def test_running_mean() -> None:
    mean = RunningMean(10.0)
    assert mean.value == 1.0
    mean.update(np.array([2.0, 4.0]))
    assert mean.value == pytest.approx(3.0)
    # two samples of 3 on average, forgotten by e^(-0.2), beside two of 0
    mean.update(np.zeros((2, 1)))
    assert mean.value == pytest.approx(6.0 * np.exp(-0.2) / (2.0 * np.exp(-0.2) + 2.0))


def test_later_fits_weigh_more_at_first_then_there_is_a_memory() -> None:
    average = parameter_average(memory=40.0, n_samples=10)
    fits = [th.tensor([4.0]), th.tensor([2.0]), th.tensor([0.0])]
    mean = fits[0]
    for n_fits, fit in enumerate(fits[1:], start=1):
        mean = average(mean, fit, th.tensor(n_fits))
    # weights 1 : 2 : 3
    assert mean.item() == pytest.approx((1 * 4.0 + 2 * 2.0 + 3 * 0.0) / 6)
    # 1 - e^(-10/40) of the newest after many
    assert average(th.zeros(1), th.ones(1), 1000).item() == pytest.approx(1.0 - np.exp(-0.25))


# The network


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("mean", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("net_arch", [[], [8, 4]])
@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_network_starts_at_the_mean(loss: Any, net_arch: list[int], mean: float, scale: float) -> None:
    net = CorrectionNetwork(3, net_arch, nn.Tanh, loss, scale if loss == "mse" else 1.0)
    inputs = th.randn(7, 3)
    assert net(inputs).shape == (7,)
    net.calibrate(mean)
    np.testing.assert_allclose(net.estimates(net(inputs).detach().numpy()), mean, rtol=1e-3)
    # what it learned since stays when the mean moves
    net.shift(0.5)
    before = net(inputs).detach()
    shift = net.calibrate(0.9)
    np.testing.assert_allclose(net(inputs).detach(), before + shift, rtol=1e-4, atol=1e-4)
    net.shift(-0.5)
    np.testing.assert_allclose(net.estimates(net(inputs).detach().numpy()), 0.9, rtol=1e-3)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_loss_is_least_at_the_mean_target(loss: Any) -> None:
    net = CorrectionNetwork(1, [], nn.Tanh, loss, 7.0 if loss == "mse" else 1.0)
    targets = th.tensor([0.2, 0.4, 0.9])
    z = th.linspace(-8.0, 8.0, 8001)
    losses = th.stack([net.loss(value.expand(3), targets) for value in z])
    assert float(net.estimates(z[losses.detach().argmin()].numpy())) == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_estimates_never_reach_zero(loss: Any) -> None:
    net = CorrectionNetwork(1, [], nn.Tanh, loss)
    estimates = net.estimates(np.array([-300.0, -120.0, -90.0]))
    assert (estimates > 0.0).all()
    assert (np.diff(estimates) > 0.0).all()


# The head cannot die or blow up


@pytest.mark.parametrize("network, loss, order", list(product(["shared", "separate"], ["bce", "mse"], ["before", "after"])))
@pytest.mark.parametrize(
    "options",
    [
        {"correction_lambda": 1.0, "normalize_correction": True, "correction_shrinkage": False},
        {"correction_lambda": 0.9, "normalize_correction": "running", "correction_shrinkage": True},
        {
            "correction_lambda": 0.0,
            "normalize_correction": False,
            "correction_shrinkage": False,
            "critic_epochs": 1,
            "critic_lambda": 1.0,
            "normalize_before_weighting": True,
            "correction_learning_rate": 0.1,
        },
    ],
    ids=["monte-carlo", "default", "harsh"],
)
def test_weights_after_fifty_updates_on_random_data(network: Any, loss: Any, order: Any, options: dict[str, Any]) -> None:
    model = AveragingPPO(
        "MlpPolicy",
        SpaceEnv(spaces.Box(-10.0, 10.0, (3,), np.float32), length=37),
        n_steps=16,
        batch_size=16,
        n_epochs=1,
        gamma=0.9,
        seed=0,
        device="cpu",
        correction_network=network,
        correction_loss=loss,
        correction_scale=100.0 if loss == "mse" else 1.0,
        correction_order=order,
        correction_epochs=2,
        **options,
    )
    for _ in range(5):
        model.learn(10 * 16, reset_num_timesteps=False)
        weights = model.correction_weights
        assert np.isfinite(weights).all()
        assert (weights >= 0.0).all()
        assert weights.max() > 1e-3
    assert model.correction_net is not None
    assert all(th.isfinite(p).all() for p in model.correction_net.parameters())
    assert any(p.abs().max() > 1e-3 for p in [model.correction_net.head.weight]), "the head did learn something"
