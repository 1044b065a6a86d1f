"""DotReacher: measures against exact distributions and by hand, and the experiments made of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sb3_avgcorr.paper import bias, dot_reacher
from sb3_avgcorr.paper.bias import Bias, emphasis_errors
from sb3_avgcorr.paper.bias_ratio import BiasRatio
from sb3_avgcorr.paper.dot_reacher_returns import DotReacherReturns
from sb3_avgcorr.studies.experiment import Experiment, Size, conduct


def test_bias_ratio_of_known_corrections() -> None:
    d_gamma = np.array([0.5, 0.3, 0.2])
    states = np.array([0, 0, 1, 1, 2, 2])
    frequency = np.full(3, 1 / 3)
    assert dot_reacher.bias_ratio(np.ones(6), states, frequency, d_gamma) == pytest.approx(1.0)
    assert dot_reacher.bias_ratio((d_gamma / frequency)[states], states, frequency, d_gamma) == pytest.approx(0.0)


def test_states_are_read_off_observations() -> None:
    mdp = dot_reacher.mdp_of(dot_reacher.make("shared", 0))
    np.testing.assert_array_equal(dot_reacher.state_of(mdp.observations), np.arange(81))


def test_dense_and_sparse_solves_agree() -> None:
    mdp = dot_reacher.mdp_of(dot_reacher.make("shared", 0))
    pi = np.random.default_rng(0).dirichlet(np.ones(8), size=81)
    dense = dot_reacher.discounted_distribution(mdp.P.toarray().reshape(81, 8, 81), mdp.rho, mdp.gamma, pi)
    np.testing.assert_allclose(dense, mdp.d_gamma(pi), atol=1e-13)


def test_training_is_watched() -> None:
    told: list[int] = []
    columns = dot_reacher.measure(seed=0, steps=400, tell=told.append, network="shared", every=200)
    assert columns["step"] == [200, 400]
    assert np.isfinite([columns["ratio"], columns["residual"]]).all()
    assert min(columns["ratio"]) > 0
    assert told == [200, 400]


def test_untrained_head_is_near_0_as_the_authors_is() -> None:
    """Which makes the paper's ratio start low: ĉ = (1-γ)·500·f is far below 1 in every state."""
    model = dot_reacher.make("shared", 0)
    model.learn(25)
    assert dot_reacher.estimates(model, dot_reacher.mdp_of(model)).max() < 0.5


def test_emphasis_errors_by_hand() -> None:
    """Two states, two buffers, weights worked out by hand."""
    states = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    steps = np.array([[0, 1, 0, 1], [0, 0, 1, 2]])
    gamma = 0.5
    scale = 0.5 * dot_reacher.HORIZON
    c, d_gamma = np.array([2.0, 1.0]), np.array([0.6, 0.4])
    result = emphasis_errors(states, steps, c, d_gamma, gamma)
    weight = np.array([0.375, 0.625])
    assert result["none"] == pytest.approx((weight @ np.array([0.225, 0.225]) ** 2, weight @ np.array([0.125, 0.125]) ** 2))
    mean = np.array([0.75, 0.625])
    assert result["averaging"][0] == pytest.approx(weight @ (mean - d_gamma) ** 2)
    assert result["averaging"][1] == pytest.approx(weight @ np.array([0.25, 0.125]) ** 2)
    # sums of γ^t over 4 samples: state 0: 1.5/4 and 1/4; state 1: 1.5/4 and 1.75/4
    e = scale * np.array([[1.5, 1.5], [1.0, 1.75]]) / 4
    inside = np.array([[0.5**2 * 0.0625, 0.5**2 * 0.0625], [0.0, 0.75**2 * np.var([1, 0.5, 0.25])]]) * scale**2
    assert result["power"][0] == pytest.approx(weight @ (e.mean(axis=0) - d_gamma) ** 2)
    assert result["power"][1] == pytest.approx(weight @ (e.var(axis=0) + inside.mean(axis=0)))


def test_emphasis_with_the_exact_correction_is_unbiased() -> None:
    mdp = dot_reacher.make("shared", 0, start="corner").env.envs[0].unwrapped.finite_mdp(0.9)  # type: ignore[union-attr, attr-defined]
    policy = mdp.uniform_policy()
    samples = mdp.sample(policy, 500, 400, horizon=500, rng=0)
    states, steps = samples.states.T.reshape(20, -1), samples.steps.T.reshape(20, -1)
    c = mdp.expected_power(policy, 500) * 0.1 * 500
    errors = emphasis_errors(states, steps, c, mdp.d_gamma(policy), 0.9)
    assert errors["averaging"][0] < 0.02 * errors["none"][0]
    assert errors["power"][0] < 0.02 * errors["none"][0]
    assert errors["averaging"][1] < errors["power"][1]


def test_buffers_hold_whole_episodes() -> None:
    with pytest.raises(ValueError, match="buffer_size=300"):
        bias.measure(seed=0, steps=10, tell=lambda n: None, buffer_size=300)


def test_bias_is_judged_by_the_ratio_of_seeds() -> None:
    rng = np.random.default_rng(0)
    level = {"none": 1.0, "power": 0.1, "averaging": 0.5}
    rows = [
        {"agent": agent, "seed": seed, "step": step, "squared_bias": x * np.exp(0.01 * rng.normal()), "variance": x}
        for agent, x in level.items()
        for seed in range(3)
        for step in (0, 50, 100)
    ]
    found = Bias().findings(pd.DataFrame(rows))
    verdicts = {claim.text.partition(" (")[0]: claim.verdict for claim in found.claims}
    assert verdicts == {
        "squared bias of averaging is below that of power": "contradicted",
        "squared bias of averaging is below that of none": "supported",
        "variance of averaging is below that of power": "contradicted",
    }
    assert found.claims[1].figure.value == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("experiment", "size"),
    [
        (Bias((("every", 50), ("buffers", 2), ("buffer_size", 500))), Size(seeds=2, steps=100)),
        (BiasRatio(networks=("shared",)), Size(seeds=2, steps=200)),
        (DotReacherReturns(), Size(seeds=2, steps=600)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_experiment_leaves_its_files_under_the_commands_name(experiment: Experiment, size: Size, tmp_path: Path) -> None:
    found = conduct(experiment, size, tmp_path, workers=2)
    assert found.failed == []
    assert {path.name for path in tmp_path.glob("*.*")} == {f"{experiment.name}.{end}" for end in ("csv", "png", "md")}
    assert len(pd.read_csv(tmp_path / f"{experiment.name}.csv")) > 0
    assert found.claims
