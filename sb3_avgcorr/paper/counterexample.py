"""
The paper's counterexample (its Section 6 and Appendix D): two states that one policy parameter cannot tell apart.

Three agents with true action values learn θ, with π(top) = sigmoid(θ) in both states. The uncorrected gradient is zero
whatever θ is; either correction finds the better action. Beside them PPO and A2C on the environment itself, with an actor that
cannot tell the states apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.paper.blind import ALGORITHMS
from sb3_avgcorr.reporting.claims import Claim, between, judge
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import FunctionJob
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, frame_of
from sb3_avgcorr.studies.variants import CORRECTIONS

Array = npt.NDArray[np.float64]
Agent = Literal["none", "power", "averaging"]
Gradient = Literal["sampled", "expected"]

AGENTS: tuple[Agent, ...] = ("none", "power", "averaging")
GAMMAS = (0.3, 0.5, 0.7, 0.9)
EPISODE = 20


class Settings(NamedTuple):
    """The paper's Table "Hyperparameters for three agents on the counterexample"."""

    learning_rate: float
    batch_size: int
    correction_learning_rate: float = 0.0


SETTINGS: dict[tuple[Agent, float], Settings] = {
    ("none", 0.3): Settings(0.95, 8),
    ("none", 0.5): Settings(0.95, 8),
    ("none", 0.7): Settings(0.95, 8),
    ("none", 0.9): Settings(0.95, 8),
    ("power", 0.3): Settings(0.95, 8),
    ("power", 0.5): Settings(0.95, 8),
    ("power", 0.7): Settings(0.95, 8),
    ("power", 0.9): Settings(0.95, 1),
    ("averaging", 0.3): Settings(0.95, 1, 0.008),
    ("averaging", 0.5): Settings(0.95, 1, 0.01),
    ("averaging", 0.7): Settings(0.95, 1, 0.005),
    ("averaging", 0.9): Settings(0.5, 1, 0.005),
}


def action_values(p: Array, gamma: Array | float, state: int) -> tuple[Array, Array]:
    """
    True q(s, a) of the two-state MDP for the actions bottom and top.

    :param p: probability of top, any shape
    :param gamma: discount factor
    :param state: 0 or 1
    """
    v = (2 * p - 1) / (1 + gamma)  # of the first state; the second one's is the negative
    sign = 1 - 2 * state
    return sign * (-1 - gamma * v), sign * (1 - gamma * v)


class CorrectionNetworks:
    """
    One small network per run, all updated at once: one-hot state, 16 ReLU units, a positive output, squared error, Adam.

    The paper's output is a ReLU, which can die: output 0 in both states, no gradient, no learning ever after. ``softplus``
    cannot.

    :param shape: shape of the runs
    :param learning_rate: of each run
    :param rng: draws the initial weights, as torch does
    :param output: ``"softplus"`` or ``"relu"``
    """

    HIDDEN = 16

    def __init__(
        self, shape: tuple[int, ...], learning_rate: Array, rng: np.random.Generator, output: Literal["softplus", "relu"]
    ) -> None:
        n = self.HIDDEN
        # all parameters of a run in one row: first layer's weights of either state, its biases, the head's weights, its bias
        bound = np.repeat([1 / np.sqrt(2), 1 / np.sqrt(n)], [3 * n, n + 1])
        self.parameters = rng.uniform(-bound, bound, (*shape, len(bound)))
        self.learning_rate = np.broadcast_to(learning_rate, shape)[..., None]
        self.output = output
        self._layers = [self.parameters[..., k * n : (k + 1) * n] for k in range(4)]
        self._gradient = np.zeros_like(self.parameters)
        self._mean, self._square = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self._updates = 0

    def __call__(self, state: int) -> Array:
        """f(s) of each run."""
        return self._forward(state)[2]

    def _forward(self, state: int) -> tuple[Array, Array, Array]:
        hidden = np.maximum(self._layers[state] + self._layers[2], 0.0)
        z = np.einsum("...h,...h->...", hidden, self._layers[3]) + self.parameters[..., -1]
        return hidden, z, np.logaddexp(0.0, z) if self.output == "softplus" else np.maximum(z, 0.0)

    def fit(self, state: int, target: Array) -> None:
        """One step of Adam on (f(s) - target)², one sample."""
        hidden, z, f = self._forward(state)
        slope = 1 / (1 + np.exp(-z)) if self.output == "softplus" else (z > 0).astype(np.float64)
        d_z = (2 * (f - target) * slope)[..., None]
        d_hidden = d_z * self._layers[3] * (hidden > 0)
        n, g = self.HIDDEN, self._gradient
        g[..., state * n : (state + 1) * n] = d_hidden
        g[..., (1 - state) * n : (2 - state) * n] = 0.0
        g[..., 2 * n : 3 * n] = d_hidden
        g[..., 3 * n : 4 * n] = d_z * hidden
        g[..., -1:] = d_z
        self._updates += 1
        self._mean += 0.1 * (g - self._mean)
        self._square += 0.001 * (g * g - self._square)
        correction = np.sqrt(1 - 0.999**self._updates)
        rate = self.learning_rate * (correction / (1 - 0.9**self._updates))
        self.parameters -= rate * self._mean / (np.sqrt(self._square) + 1e-8 * correction)


def simulate(
    agent: Agent,
    gammas: Sequence[float] = GAMMAS,
    *,
    seeds: int = 10,
    steps: int = 100_000,
    theta: float = 0.0,
    gradient: Gradient = "sampled",
    points: int = 100,
    output: Literal["softplus", "relu"] = "softplus",
    seed: int = 0,
    tell: Callable[[int], None] = lambda steps: None,
) -> tuple[npt.NDArray[np.int64], Array]:
    """
    Train one agent for every γ and seed at once.

    :param agent: ``"none"``, ``"power"`` or ``"averaging"``
    :param gammas: discount factors; one not in the paper's table takes the settings of the nearest that is
    :param seeds: number of independent runs per γ
    :param steps: environment steps
    :param theta: initial θ
    :param gradient: ``"sampled"``: q(s,a) ∇log π(a) for the action drawn; ``"expected"``: Σ_a q(s,a) ∇π(a), no action noise
    :param points: number of points recorded
    :param output: output of the correction network
    :param seed: seed of everything drawn
    :param tell: is called with the steps done so far
    :return: steps of the recorded points, and π(top) there, shape (points + 1, n_gammas, seeds)
    """
    rng = np.random.default_rng(seed)
    table = [SETTINGS[agent, min(GAMMAS, key=lambda known: abs(known - gamma))] for gamma in gammas]
    shape = (len(gammas), seeds)
    gamma = np.array(gammas, dtype=np.float64)[:, None]
    lr, batch, correction_lr = (np.array(column)[:, None] for column in zip(*table, strict=True))
    networks = CorrectionNetworks(shape, correction_lr, rng, output) if agent == "averaging" else None
    powers: Array = gamma ** np.arange(EPISODE, dtype=np.float64)
    parameter, total = np.full(shape, theta, dtype=np.float64), np.zeros(shape)
    record_at = np.linspace(0, steps, points + 1).astype(np.int64)
    record = np.empty((points + 1, *shape))
    point = 0
    for step in range(steps + 1):
        p = 1 / (1 + np.exp(-parameter))
        while point <= points and step == record_at[point]:  # of few steps a point may come twice
            record[point] = p
            point += 1
            tell(step)
        if step == steps:
            break
        t = step % EPISODE
        state = t % 2
        bottom, top = action_values(p, gamma, state)
        if gradient == "expected":
            g = p * (1 - p) * (top - bottom)
        else:
            g = np.where(rng.random(shape) < p, (1 - p) * top, -p * bottom)
        if networks is not None:
            networks.fit(state, powers[:, t : t + 1])
            g = g * networks(state)
        elif agent == "power":
            g = g * powers[:, t : t + 1]
        total += g
        due = (step + 1) % batch == 0
        parameter += np.where(due, lr * total / batch, 0.0)
        total = np.where(due, 0.0, total)
    return record_at, record


def measure(*, seed: int, steps: int, tell: Callable[[int], None], agent: Agent, **kwargs: Any) -> dict[str, list[float]]:
    """
    One run of an agent at every γ: the probability of the better action along it.

    :param seed: seed of everything drawn
    :param steps: environment steps
    :param tell: is called with the steps done so far
    :param agent: the agent
    :param kwargs: further arguments of :func:`simulate`
    :return: columns gamma, step and optimal_action
    """
    at, probabilities = simulate(agent, seeds=1, steps=steps, seed=seed, tell=tell, **kwargs)
    gammas = kwargs["gammas"]
    return {
        "gamma": np.repeat(gammas, len(at)).tolist(),
        "step": np.tile(at, len(gammas)).tolist(),
        "optimal_action": probabilities[:, :, 0].T.ravel().tolist(),
    }


@dataclass(frozen=True)
class Counterexample(Experiment):
    """
    The three agents at every γ, and PPO and A2C on the real environment.

    :param gammas: discount factors
    :param theta: initial θ
    :param gradient: see :func:`simulate`
    """

    gammas: tuple[float, ...] = GAMMAS
    theta: float = 0.0
    gradient: Gradient = "sampled"
    name: str = "counterexample"
    where: str = "Fig. 1, App. D"
    purpose: str = "two states only a correction tells apart"

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        steps = size.steps or (100_000 if size.full else 40_000)
        settings = {"gammas": list(self.gammas), "theta": self.theta, "gradient": self.gradient}
        planned: dict[tuple[str, str], list[FunctionJob]] = {}
        for agent in AGENTS:
            function = f"{__name__}.measure"
            planned["simulated", agent] = [
                FunctionJob(function, seed, steps, agent, {"agent": agent, **settings}) for seed in range(seeds)
            ]
        for algorithm, (_, own_steps, _) in ALGORITHMS.items():
            for variant in CORRECTIONS:
                planned[algorithm, variant] = [
                    FunctionJob(
                        "sb3_avgcorr.paper.blind.measure",
                        seed,
                        size.steps or own_steps,
                        f"{algorithm}, {variant}",
                        {"algorithm": algorithm, "variant": variant},
                    )
                    for seed in range(seeds)
                ]
        return planned

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        parts = {kind: {k: jobs for k, jobs in plan.items() if (k[0] == "simulated") == kind} for kind in (True, False)}
        simulated = frame_of(parts[True], outcome, ("kind", "agent")).drop(columns="kind")
        return self.findings(simulated, frame_of(parts[False], outcome, ("algorithm", "correction")))

    def findings(self, simulated: pd.DataFrame, trained: pd.DataFrame) -> Findings:
        """
        What the figures say.

        :param simulated: of the three agents: columns agent, gamma, seed, step, optimal_action
        :param trained: of the real algorithms: columns algorithm, correction, gamma, seed, steps, optimal_action
        """
        steps, seeds = int(simulated["step"].max()), simulated["seed"].nunique()
        claims = []
        for (agent, gamma), part in simulated.groupby(["agent", "gamma"], sort=False):
            start = float(part.loc[part["step"] == 0, "optimal_action"].mean())
            last = interval(part.loc[part["step"] == steps, "optimal_action"])
            verdict = between(last, start - 0.02, start + 0.02) if agent == "none" else between(last, 0.95)
            what = f"stays within 0.02 of {start:.2f}" if agent == "none" else "is above 0.95"
            claims.append(Claim(f"{agent}: P(optimal action) {what} after {steps} steps", verdict, last, f"γ = {gamma}"))
        for (algorithm, correction), part in trained.groupby(["algorithm", "correction"], sort=False):
            last, stuck = interval(part["optimal_action"]), correction == "none"
            verdict = between(last, high=0.75) if stuck else between(last, 0.95)
            what = "stays below 0.75" if stuck else "is above 0.95"
            claims.append(Claim(f"{correction}: P(optimal action) {what}", verdict, last, f"{algorithm}, γ = 0.7"))
        for algorithm in dict.fromkeys(trained["algorithm"]):
            own = trained[trained["algorithm"] == algorithm].groupby("correction")["optimal_action"]
            found = {correction: values.to_numpy() for correction, values in own}
            if {"auto", "averaging"} <= found.keys():
                verdict, apart = judge("as good as", found["auto"], found["averaging"])
                claims.append(Claim("auto is as good as averaging", verdict, apart, f"{algorithm}, γ = 0.7"))
        figure = curves(
            simulated,
            x="step",
            y="optimal_action",
            line="agent",
            panel="gamma",
            ylabel="P(optimal action)",
            ylim=(0.0, 1.05),
        )
        note = (
            f"γ = {', '.join(map(str, self.gammas))}; {seeds} seeds; {steps} steps; θ starts at {self.theta}; {self.gradient} "
            "gradient; settings of the paper's table, true action values at the γ asked for, softplus output. PPO and A2C "
            "train with an actor that cannot tell the states apart."
        )
        return Findings(
            self.name,
            "The counterexample",
            [note],
            [Section(pictures=[Picture(f"{self.name}.png", "The counterexample", figure)], claims=claims)],
            {self.name: simulated, **({f"{self.name}_algorithms": trained} if len(trained) else {})},
        )
