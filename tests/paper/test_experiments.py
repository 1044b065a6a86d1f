"""The paper's small experiments: what they compute, and what they must show."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch as th

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.envs.two_state import TwoStateEnv
from sb3_avgcorr.paper import bias as emphasis
from sb3_avgcorr.paper import bias_ratio, counterexample
from sb3_avgcorr.paper import dot_reacher as dotreacher
from sb3_avgcorr.paper import dot_reacher_returns as dotreacher_returns
from sb3_avgcorr.paper.blind import AsymmetricPolicy, top_probability, train_blind
from sb3_avgcorr.reporting.figures import Claim, bootstrap, curves, interval, within, write


# The counterexample
@pytest.mark.parametrize("gamma", [0.3, 0.9])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_action_values_are_the_exact_ones(gamma: float, p: float) -> None:
    mdp = TwoStateEnv().finite_mdp(gamma)
    exact = mdp.q(np.array([[1 - p, p], [1 - p, p]]))
    for state in range(2):
        np.testing.assert_allclose(counterexample.action_values(np.array(p), gamma, state), exact[state], atol=1e-12)


def test_networks_update_as_torch_does() -> None:
    rng = np.random.default_rng(0)
    networks = counterexample.CorrectionNetworks((1, 1), np.array([[0.01]]), rng, "softplus")
    start = networks.parameters[0, 0].copy()
    first, head = th.nn.Linear(2, 16).double(), th.nn.Linear(16, 1).double()
    with th.no_grad():
        first.weight.copy_(th.as_tensor(start[:32].reshape(2, 16).T))
        first.bias.copy_(th.as_tensor(start[32:48]))
        head.weight.copy_(th.as_tensor(start[48:64][None]))
        head.bias.copy_(th.as_tensor(start[64:]))
    optimizer = th.optim.Adam([*first.parameters(), *head.parameters()], lr=0.01)

    def output(state: int) -> th.Tensor:
        return th.nn.functional.softplus(head(th.relu(first(th.eye(2, dtype=th.float64)[state])))).squeeze()

    for t in range(30):
        networks.fit(t % 2, np.array([[0.9**t]]))
        optimizer.zero_grad()
        (output(t % 2) - 0.9**t).square().backward()
        optimizer.step()
    for state in range(2):
        assert networks(state).item() == pytest.approx(output(state).item(), rel=1e-9)


def test_biased_agent_stays_where_it_began() -> None:
    """Drawn actions from θ = 0, and from anywhere when the action noise is taken out."""
    for gradient, theta in (("sampled", 0.0), ("expected", -1.0)):
        _, p = counterexample.simulate("biased", steps=4000, points=4, theta=theta, gradient=gradient)  # type: ignore[arg-type]
        assert np.abs(p - p[0]).max() < 1e-9


@pytest.mark.parametrize("agent", ["power", "averaging"])
def test_corrected_agents_find_the_better_action(agent: str) -> None:
    _, p = counterexample.simulate(agent, (0.3, 0.7), seeds=4, steps=10_000, points=4)  # type: ignore[arg-type]
    assert (p[-1].mean(axis=1) > 0.95).all()


@pytest.mark.slow
def test_counterexample_as_in_the_paper(tmp_path: Path) -> None:
    result = counterexample.run(tmp_path, deep=False)
    assert result["holds"], result["report"]
    frame = pd.read_csv(result["files"]["csv"])
    assert len(frame) == 3 * 4 * 10 * 101


def test_blind_policy_is_the_same_in_both_states_and_its_critic_is_not(tmp_path: Path) -> None:
    model = AveragingPPO(AsymmetricPolicy, "avgcorr/TwoState-v0", n_steps=100, batch_size=50, seed=0, device="cpu")
    model.learn(300)
    states = th.eye(2)
    with th.no_grad():
        probabilities = model.policy.get_distribution(states).distribution.probs
        values = model.policy.predict_values(states)
    th.testing.assert_close(probabilities[0], probabilities[1])
    assert abs(float(values[0] - values[1])) > 1e-3
    model.save(tmp_path / "model.zip")
    assert top_probability(AveragingPPO.load(tmp_path / "model.zip")) == top_probability(model)


def test_partly_blind_policy_sees_what_it_may() -> None:
    kwargs = {"actor_sees": [1]}
    model = AveragingPPO(AsymmetricPolicy, "avgcorr/DotReacher-v0", n_steps=64, policy_kwargs=kwargs, seed=0, device="cpu")
    with th.no_grad():
        probs = model.policy.get_distribution(th.tensor([[0.0, 0.5], [0.8, 0.5], [0.0, -0.5]])).distribution.probs
    th.testing.assert_close(probs[0], probs[1])
    assert not th.equal(probs[0], probs[2])
    with pytest.raises(ValueError, match="actor_sees"):
        AveragingPPO(AsymmetricPolicy, "avgcorr/TwoState-v0", policy_kwargs={"actor_sees": [2]}, device="cpu")


@pytest.mark.slow
def test_ppo_stays_stuck_and_averaging_ppo_does_not() -> None:
    frame = train_blind(("PPO",), (None, "averaging"), seeds=3)
    last = frame.groupby("correction")["optimal_action"].mean()
    assert last["averaging"] > 0.95
    assert last["none"] < 0.75


# DotReacher
def test_bias_ratio_of_known_corrections() -> None:
    d_gamma = np.array([0.5, 0.3, 0.2])
    states = np.array([0, 0, 1, 1, 2, 2])
    frequency = np.full(3, 1 / 3)
    assert dotreacher.bias_ratio(np.ones(6), states, frequency, d_gamma) == pytest.approx(1.0)
    assert dotreacher.bias_ratio((d_gamma / frequency)[states], states, frequency, d_gamma) == pytest.approx(0.0)


def test_states_are_read_off_observations() -> None:
    mdp = dotreacher.mdp_of(dotreacher.make("shared", 0))
    np.testing.assert_array_equal(dotreacher.state_of(mdp.observations), np.arange(81))


def test_dense_and_sparse_solves_agree() -> None:
    mdp = dotreacher.mdp_of(dotreacher.make("shared", 0))
    pi = np.random.default_rng(0).dirichlet(np.ones(8), size=81)
    dense = dotreacher.discounted_distribution(mdp.P.toarray().reshape(81, 8, 81), mdp.rho, mdp.gamma, pi)
    np.testing.assert_allclose(dense, mdp.d_gamma(pi), atol=1e-13)


def test_training_is_watched() -> None:
    frame = dotreacher.train("shared", 0, 400, every=200)
    assert frame["step"].tolist() == [200, 400]
    assert np.isfinite(frame[["ratio", "residual"]].to_numpy()).all()
    assert (frame["ratio"] > 0).all()


def test_emphasis_errors_by_hand() -> None:
    """Two states, two buffers, weights worked out by hand."""
    states = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    steps = np.array([[0, 1, 0, 1], [0, 0, 1, 2]])
    gamma = 0.5
    scale = 0.5 * dotreacher.HORIZON
    c, d_gamma = np.array([2.0, 1.0]), np.array([0.6, 0.4])
    result = emphasis.emphasis_errors(states, steps, c, d_gamma, gamma)
    weight = np.array([0.375, 0.625])
    assert result["biased"] == pytest.approx((weight @ np.array([0.225, 0.225]) ** 2, weight @ np.array([0.125, 0.125]) ** 2))
    mean = np.array([0.75, 0.625])
    assert result["averaging"][0] == pytest.approx(weight @ (mean - d_gamma) ** 2)
    assert result["averaging"][1] == pytest.approx(weight @ np.array([0.25, 0.125]) ** 2)
    # sums of γ^t over 4 samples: state 0: 1.5/4 and 1/4; state 1: 1.5/4 and 1.75/4
    e = scale * np.array([[1.5, 1.5], [1.0, 1.75]]) / 4
    inside = np.array([[0.5**2 * 0.0625, 0.5**2 * 0.0625], [0.0, 0.75**2 * np.var([1, 0.5, 0.25])]]) * scale**2
    assert result["power"][0] == pytest.approx(weight @ (e.mean(axis=0) - d_gamma) ** 2)
    assert result["power"][1] == pytest.approx(weight @ (e.var(axis=0) + inside.mean(axis=0)))


def test_emphasis_with_the_exact_correction_is_unbiased() -> None:
    mdp = dotreacher.make("shared", 0, start="corner").env.envs[0].unwrapped.finite_mdp(0.9)  # type: ignore[union-attr, attr-defined]
    policy = mdp.uniform_policy()
    samples = mdp.sample(policy, 500, 400, horizon=500, rng=0)
    states, steps = samples.states.T.reshape(20, -1), samples.steps.T.reshape(20, -1)
    c = mdp.expected_power(policy, 500) * 0.1 * 500
    errors = emphasis.emphasis_errors(states, steps, c, mdp.d_gamma(policy), 0.9)
    assert errors["averaging"][0] < 0.02 * errors["biased"][0]
    assert errors["power"][0] < 0.02 * errors["biased"][0]
    assert errors["averaging"][1] < errors["power"][1]


def test_emphasis_refuses_parts_of_episodes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="buffer_size=300"):
        emphasis.run(tmp_path, buffer_size=300)


@pytest.mark.parametrize(
    ("module", "kwargs"),
    [
        (emphasis, {"steps": 100, "every": 50, "buffers": 2, "buffer_size": 500}),
        (bias_ratio, {"seeds": 2, "steps": 200, "networks": ("shared",)}),
        (dotreacher_returns, {"seeds": 2, "steps": 600}),
        (counterexample, {"seeds": 2, "steps": 200, "deep": False}),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_each_experiment_leaves_its_files(module: object, kwargs: dict[str, object], tmp_path: Path) -> None:
    result = module.run(tmp_path, **kwargs)  # type: ignore[attr-defined]
    name = result["experiment"]
    assert {path.suffix for path in tmp_path.glob(f"{name}*")} == {".csv", ".png", ".md"}
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 0
    assert {"claim", "holds", "mean", "low", "high", "decides"} == set(result["claims"][0])


# Reports
def test_interval_contains_its_mean_and_is_exact_for_constants() -> None:
    assert interval([0.5] * 10) == (0.5, 0.5, 0.5)
    mean, low, high = interval(np.random.default_rng(0).normal(size=50))
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(50), rel=0.3)


def test_interval_of_few_runs_is_students() -> None:
    # mean 2, standard deviation 1, t of two degrees of freedom 4.3027
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 4.3027 / 3**0.5, 2.0 + 4.3027 / 3**0.5), abs=1e-4)
    # of nothing, three runs must not make something more often than they should
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    wrong = np.mean([within(interval(x), 0.0) is not None for x in draws])
    assert wrong == pytest.approx(0.05, abs=0.015)
    assert np.mean([bootstrap(x, 200)[1] > 0.0 or bootstrap(x, 200)[2] < 0.0 for x in draws[:300]]) > 0.15


def test_report_says_what_does_not_hold(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0, 1, 0, 1], "y": [1.0, 2.0, 3.0, 4.0], "who": ["a"] * 4, "seed": [0, 0, 1, 1]})
    figure = curves(frame, x="x", y="y", line="who")
    claims = [Claim("one", True, 1, 1, 1), Claim("two", False, 1, 1, 1), Claim("three", None, 1, 1, 1)]
    result = write(tmp_path, "test", "Title", "note", frame, figure, claims)
    assert result["holds"] is False
    assert "**no**" in result["report"]
    assert "not decided" in result["report"]
    assert write(tmp_path, "test", "Title", "note", frame, figure, [claims[0], claims[2]])["holds"] is True
