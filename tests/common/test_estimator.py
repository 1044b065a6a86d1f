"""The estimator of ĉ by itself: what it learns from arrays, what it keeps, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_avgcorr.common.correction import correction_targets
from sb3_avgcorr.common.critic import CriticLayers
from sb3_avgcorr.common.estimator import CorrectionEstimator, PowerWeights, as_arrays, as_tensors
from sb3_avgcorr.common.options import CorrectionOptions

GAMMA, LENGTH = 0.95, 20
#: t of three environments in episodes of 20 steps that are not in step
STEPS = (np.arange(400)[:, None] + np.array([0, 7, 13])) % LENGTH


def told(steps: np.ndarray) -> th.Tensor:
    """Features that tell the time."""
    return th.as_tensor(steps.reshape(-1, 1) / LENGTH, dtype=th.float32)


def make(input_dim: int = 1, **options: Any) -> CorrectionEstimator:
    th.manual_seed(0)
    return CorrectionEstimator(CorrectionOptions(**options), input_dim, GAMMA, rollout_size=STEPS.size)


def learned(estimator: CorrectionEstimator, rollouts: int = 12, features: th.Tensor | None = None) -> CorrectionEstimator:
    for _ in range(rollouts):
        seen = told(STEPS) if features is None else features
        estimator.observe(seen, STEPS)
        estimator.fit(seen, STEPS)
        estimator.weights(seen)
    return estimator


def relative_error(estimator: CorrectionEstimator) -> float:
    t = np.arange(LENGTH)
    truth = GAMMA**t / np.mean(GAMMA**t)
    return float(np.abs(estimator.ratio(told(t)) / truth - 1.0).mean())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction_lambda": 1.0},
        {"correction_loss": "mse", "correction_scale": 10.0, "correction_lambda": 1.0},
        {"correction_averaging": False, "correction_shrinkage": False},
        {"normalize_correction": "running", "correction_batch_size": None, "correction_epochs": 20},
    ],
    ids=str,
)
def test_learns_the_powers_where_the_features_tell_the_time(options: dict[str, Any]) -> None:
    assert relative_error(learned(make(**options))) < 0.05


def test_stays_at_one_where_the_features_tell_nothing() -> None:
    noise = th.as_tensor(np.random.default_rng(0).normal(size=(STEPS.size, 1)), dtype=th.float32)
    for features in (th.ones(STEPS.size, 1), noise):
        estimator = learned(make(), 6, features)
        assert np.abs(estimator.ratio(features) - 1.0).mean() < 0.02


def test_shrinkage_draws_towards_one() -> None:
    # each rollout has features of its own, so that nothing learned from earlier ones foretells it
    rng = np.random.default_rng(0)
    estimator = make(64)
    for _ in range(4):
        features = th.as_tensor(rng.normal(size=(STEPS.size, 64)), dtype=th.float32)
        estimator.observe(features, STEPS)
        estimator.fit(features, STEPS)
        weights = estimator.weights(features)
    assert estimator.shrinkage < 0.2
    raw = estimator.estimates(features)
    np.testing.assert_allclose(weights - 1.0, estimator.shrinkage * (raw / raw.mean() - 1.0), rtol=1e-5, atol=1e-7)


def test_weights_have_mean_one_and_are_the_ratio() -> None:
    estimator = learned(make(correction_shrinkage=False), 3)
    weights = estimator.weights(told(STEPS))
    assert weights.mean() == pytest.approx(1.0)
    np.testing.assert_array_equal(estimator.ratio(told(STEPS)), weights)


def test_knows_nothing_at_first() -> None:
    np.testing.assert_array_equal(make().ratio(told(STEPS)), 1.0)


def test_starts_at_the_mean_of_the_powers() -> None:
    # before the first step of its fit, so that a short first rollout is not weighted by chance
    estimator = make(correction_epochs=0)
    estimator.observe(told(STEPS), STEPS)
    estimator.fit(told(STEPS), STEPS)
    assert estimator.estimates(told(STEPS)).mean() == pytest.approx(np.mean(GAMMA**STEPS), rel=0.05)
    assert estimator.loss is None


def test_one_step_written_out() -> None:
    """Cross-entropy against the bootstrapped targets, Adam, on the whole rollout."""
    estimator = make(correction_batch_size=None, correction_epochs=1, correction_lambda=0.8)
    network, features = estimator.network, told(STEPS)
    estimator.observe(features, STEPS)
    network.calibrate(float(np.mean(GAMMA**STEPS)))
    estimates = estimator.estimates(features).reshape(STEPS.shape)
    targets = th.as_tensor(correction_targets(STEPS, estimates, GAMMA, 0.8).reshape(-1), dtype=th.float32)
    loss = th.nn.functional.binary_cross_entropy_with_logits(network(features), targets)
    gradients = th.autograd.grad(loss, list(network.parameters()))
    expected = [p - 0.01 * g / (g.abs() + 1e-8) for p, g in zip(network.parameters(), gradients, strict=True)]
    estimator.fit(features, STEPS, 0.01)
    assert estimator.loss == pytest.approx(loss.item(), rel=1e-4)
    # the head starts at zero, so that the first step is its alone
    assert sum(int((g.abs() > 1e-5).sum()) for g in gradients) > 15
    for p, value, g in zip(network.parameters(), expected, gradients, strict=True):
        clear = g.abs() > 1e-5
        np.testing.assert_allclose(p.detach()[clear], value.detach()[clear], atol=1e-4)


def test_what_is_not_finite_gets_a_weight_of_one() -> None:
    estimator = learned(make(correction_shrinkage=False), 2)
    features = told(STEPS)
    features[3] = np.nan
    with pytest.warns(UserWarning, match="estimate is not finite"):
        weights = estimator.weights(features)
    assert np.isfinite(weights).all()
    assert weights[3] == pytest.approx(1.0, rel=1e-4)


def test_draws_nothing_from_global_streams() -> None:
    th.manual_seed(5)
    before = th.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    learned(CorrectionEstimator(CorrectionOptions(), 1, GAMMA), 2)
    np.testing.assert_array_equal(th.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


# State


@pytest.mark.parametrize("options", [{}, {"correction_averaging": False, "normalize_correction": "running"}], ids=str)
def test_state_goes_on_to_the_bit(options: dict[str, Any]) -> None:
    a, b = learned(make(**options), 3), make(**options)
    b.set_state(a.get_state())
    np.testing.assert_array_equal(a.ratio(told(STEPS)), b.ratio(told(STEPS)))
    for estimator in (a, b):
        learned(estimator, 2)
    np.testing.assert_array_equal(a.ratio(told(STEPS)), b.ratio(told(STEPS)))
    assert a.shrinkage == b.shrinkage


def test_state_is_a_copy() -> None:
    estimator = learned(make(), 2)
    state, before = estimator.get_state(), estimator.ratio(told(STEPS))
    learned(estimator, 2)
    estimator.set_state(state)
    np.testing.assert_array_equal(estimator.ratio(told(STEPS)), before)


@pytest.mark.parametrize(
    "other",
    [
        lambda: make(2),
        lambda: make(correction_averaging=False),
        lambda: CorrectionEstimator(CorrectionOptions(), 1, 0.9, net_arch=[]),
    ],
)
def test_state_of_another_is_refused_whole(other: Any) -> None:
    estimator = learned(make(), 2)
    before = estimator.get_state()
    with pytest.raises(ValueError, match="state is of another correction"):
        estimator.set_state(other().get_state())
    assert_same = lambda a, b: np.testing.assert_equal(as_arrays(a), as_arrays(b))  # noqa: E731
    assert_same(estimator.get_state(), before)


def test_arrays_and_back() -> None:
    value = {"a": th.arange(3.0), "b": [th.zeros(2), 1, None]}
    arrays = as_arrays(value)
    assert isinstance(arrays["a"], np.ndarray)
    assert isinstance(arrays["b"][0], np.ndarray)
    th.testing.assert_close(as_tensors(arrays), value)


# Sharing the critic's layers


class Policy(th.nn.Module):
    """The least of a policy that has a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.value_net = th.nn.Linear(8, 1)
        self.mlp_extractor = th.nn.Module()
        self.mlp_extractor.net = th.nn.Linear(1, 8)
        self.mlp_extractor.forward_critic = lambda x: th.tanh(self.mlp_extractor.net(x))
        self.mlp_extractor.forward_actor = lambda x: x
        self.device = th.device("cpu")
        self.vf_features_extractor = self.pi_features_extractor = th.nn.Module()
        self.vf_features_extractor.features_dim = 1

    def set_training_mode(self, mode: bool) -> None:
        self.train(mode)


def test_a_shared_fit_trains_both_heads() -> None:
    th.manual_seed(0)
    policy = Policy()
    critic = CriticLayers(policy)  # type: ignore[arg-type]
    options = CorrectionOptions(correction_network="shared")
    estimator = CorrectionEstimator(options, 8, GAMMA, critic=critic)
    returns = (STEPS / LENGTH).astype(np.float32)
    for _ in range(40):
        estimator.observe(told(STEPS), STEPS)
        estimator.fit(told(STEPS), STEPS, returns=returns, coefficients=(1.0, 1.0))
        estimator.weights(told(STEPS))
    assert relative_error(estimator) < 0.05
    with th.no_grad():
        values = policy.value_net(policy.mlp_extractor.forward_critic(told(STEPS)))[:, 0].numpy()
    np.testing.assert_allclose(values, returns.reshape(-1), atol=0.1)


# γ^t itself


def test_power_weights() -> None:
    steps = np.array([[0, 5], [1, 6]])
    powers = 0.5**steps
    ratio, mean = PowerWeights(CorrectionOptions(), 0.5)(steps)
    np.testing.assert_allclose(ratio, powers / powers.mean())
    assert mean == pytest.approx(powers.mean())
    late, _ = PowerWeights(CorrectionOptions(), 0.5)(steps + 5000)
    np.testing.assert_allclose(late, ratio, err_msg="γ^t has vanished, its ratio has not")


def test_running_power_weights_and_their_state() -> None:
    options = CorrectionOptions(normalize_correction="running")
    power = PowerWeights(options, 0.5)
    power(np.array([[0]]))
    ratio, mean = power(np.array([[1]]))
    # the mean of 1 and 0.5, the older one a little forgotten
    assert mean == pytest.approx(0.75, rel=1e-3)
    np.testing.assert_allclose(ratio, 0.5 / mean)
    other = PowerWeights(options, 0.5)
    other.set_state(power.get_state())
    np.testing.assert_array_equal(other(np.array([[2]]))[0], power(np.array([[2]]))[0])


def test_everything_in_the_state_of_the_networks_is_a_real_number() -> None:
    """As SB3's own tests expect of ``get_parameters()``, which draw other parameters of the same kind."""
    estimator = CorrectionEstimator(CorrectionOptions(), input_dim=3, gamma=0.9)
    assert estimator.average is not None
    for network in (estimator.network, estimator.average):
        assert all(value.is_floating_point() for value in network.state_dict().values())
