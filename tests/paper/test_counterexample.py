"""The two-state counterexample: exact values, the agents, the real algorithms, and what is made of their figures."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch as th

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.envs.two_state import TwoStateEnv
from sb3_avgcorr.paper import blind, counterexample
from sb3_avgcorr.paper.blind import AsymmetricPolicy, top_probability
from sb3_avgcorr.paper.counterexample import Counterexample
from sb3_avgcorr.studies.experiment import Size, conduct
from sb3_avgcorr.studies.variants import CORRECTIONS


@pytest.mark.parametrize("gamma", [0.3, 0.9])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_action_values_are_the_exact_ones(gamma: float, p: float) -> None:
    mdp = TwoStateEnv().finite_mdp(gamma)
    exact = mdp.q(np.array([[1 - p, p], [1 - p, p]]))
    for state in range(2):
        np.testing.assert_allclose(counterexample.action_values(np.array(p), gamma, state), exact[state], atol=1e-12)


def test_fewer_steps_than_points() -> None:
    at, p = counterexample.simulate("power", (0.5,), seeds=1, steps=7, points=20)
    assert at[-1] == 7
    assert ((p > 0.4) & (p < 0.6)).all()  # θ has hardly moved from 0
    assert all((p[at == step] == p[at == step][0]).all() for step in range(8))


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


def test_uncorrected_agent_stays_where_it_began() -> None:
    """Drawn actions from θ = 0, and from anywhere when the action noise is taken out."""
    for gradient, theta in (("sampled", 0.0), ("expected", -1.0)):
        _, p = counterexample.simulate("none", steps=4000, points=4, theta=theta, gradient=gradient)  # type: ignore[arg-type]
        assert np.abs(p - p[0]).max() < 1e-9


@pytest.mark.parametrize("agent", ["power", "averaging"])
def test_corrected_agents_find_the_better_action(agent: str) -> None:
    _, p = counterexample.simulate(agent, (0.3, 0.7), seeds=4, steps=10_000, points=4)  # type: ignore[arg-type]
    assert (p[-1].mean(axis=1) > 0.95).all()


def test_columns_of_a_run_are_the_simulation() -> None:
    told: list[int] = []
    gammas = [0.3, 0.7]
    columns = counterexample.measure(seed=3, steps=40, tell=told.append, agent="power", gammas=gammas, points=2)
    at, p = counterexample.simulate("power", gammas, seeds=1, steps=40, seed=3, points=2)
    frame = pd.DataFrame(columns)
    for g, gamma in enumerate(gammas):
        part = frame[frame["gamma"] == gamma]
        np.testing.assert_array_equal(part["step"], at)
        np.testing.assert_array_equal(part["optimal_action"], p[:, g, 0])
    assert told == [0, 20, 40]


@pytest.mark.slow
def test_counterexample_as_in_the_paper() -> None:
    rows = []
    for agent in counterexample.AGENTS:
        for seed in range(4):
            gammas = list(counterexample.GAMMAS)
            columns = counterexample.measure(seed=seed, steps=100_000, tell=lambda n: None, agent=agent, gammas=gammas)
            rows.append(pd.DataFrame({"agent": agent, "seed": seed, **columns}))
    trained = pd.DataFrame(columns=["algorithm", "correction", "optimal_action"])
    found = Counterexample().findings(pd.concat(rows, ignore_index=True), trained)
    assert {claim.verdict for claim in found.claims} == {"supported"}, found.report
    assert len(found.claims) == 12


def test_verdicts_by_the_last_probability() -> None:
    def agent(name: str, last: float) -> pd.DataFrame:
        steps = pd.DataFrame({"step": [0, 100], "optimal_action": [0.5, last]})
        return pd.concat([steps.assign(agent=name, gamma=0.5, seed=seed) for seed in range(3)])

    simulated = pd.concat([agent("none", 0.7), agent("power", 0.99), agent("averaging", 0.5)])
    corrections = ["none", "none", "auto", "auto"]
    trained = pd.DataFrame({"algorithm": "PPO", "correction": corrections, "optimal_action": [0.5, 0.51, 0.4, 0.99]})
    found = Counterexample().findings(simulated, trained)
    verdicts = [claim.verdict for claim in found.claims]
    assert verdicts == ["contradicted", "supported", "contradicted", "supported", "cannot tell"]


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
def test_ppo_stays_stuck_and_corrected_ppo_does_not() -> None:
    last = {
        variant: np.mean(
            [
                blind.measure(seed=seed, steps=30_000, tell=lambda n: None, algorithm="PPO", variant=variant)["optimal_action"]
                for seed in range(3)
            ]
        )
        for variant in CORRECTIONS
    }
    assert last["none"] < 0.75
    assert last["averaging"] > 0.95
    assert last["power"] > 0.95
    assert last["auto"] > 0.95


@pytest.mark.slow
def test_the_whole_experiment_small(tmp_path: Path) -> None:
    experiment = Counterexample(gammas=(0.5,))
    found = conduct(experiment, Size(seeds=2, steps=200), tmp_path, workers=2)
    assert found.failed == []
    assert {path.name for path in tmp_path.glob("counterexample*")} == {
        "counterexample.csv",
        "counterexample_algorithms.csv",
        "counterexample.md",
        "counterexample.png",
    }
    trained = pd.read_csv(tmp_path / "counterexample_algorithms.csv")
    assert len(trained) == 2 * len(CORRECTIONS) * 2
    assert "sb3-avgcorr reproduce counterexample --seeds 2 --steps 200" in (tmp_path / "counterexample.md").read_text()
