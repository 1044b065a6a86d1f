"""
The paper's counterexample (its Section 6 and Appendix D): two states that one policy parameter cannot tell apart.

Three agents with true action values learn θ, with π(top) = sigmoid(θ) in both states. The uncorrected gradient is zero
whatever θ is; either correction finds the better action. ``python -m sb3_avgcorr.paper.counterexample --out DIR``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.reporting.figures import Claim, curves, interval, parser_for, within, write

Array = npt.NDArray[np.float64]
Agent = Literal["biased", "power", "averaging"]
Gradient = Literal["sampled", "expected"]

AGENTS: tuple[Agent, ...] = ("biased", "power", "averaging")
GAMMAS = (0.3, 0.5, 0.7, 0.9)
EPISODE = 20


class Settings(NamedTuple):
    """The paper's Table "Hyperparameters for three agents on the counterexample"."""

    learning_rate: float
    batch_size: int
    correction_learning_rate: float = 0.0


SETTINGS: dict[tuple[Agent, float], Settings] = {
    ("biased", 0.3): Settings(0.95, 8),
    ("biased", 0.5): Settings(0.95, 8),
    ("biased", 0.7): Settings(0.95, 8),
    ("biased", 0.9): Settings(0.95, 8),
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
) -> tuple[npt.NDArray[np.int64], Array]:
    """
    Train one agent for every γ and seed at once.

    :param agent: ``"biased"``, ``"power"`` or ``"averaging"``
    :param gammas: discount factors; one not in the paper's table takes the settings of the nearest that is
    :param seeds: number of independent runs per γ
    :param steps: environment steps
    :param theta: initial θ
    :param gradient: ``"sampled"``: q(s,a) ∇log π(a) for the action drawn; ``"expected"``: Σ_a q(s,a) ∇π(a), no action noise
    :param points: number of points recorded
    :param output: output of the correction network
    :param seed: seed of everything drawn
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
        if step == record_at[point]:
            record[point] = p
            point += 1
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


def run(
    out: Path | str,
    *,
    seeds: int = 10,
    steps: int = 100_000,
    gammas: Sequence[float] = GAMMAS,
    theta: float = 0.0,
    gradient: Gradient = "sampled",
    deep: bool = True,
) -> dict[str, Any]:
    """
    The three agents at every γ, and PPO and A2C on the real environment.

    :param out: directory for ``counterexample.csv``, ``counterexample.png`` and ``counterexample.md``
    :param seeds: runs per agent and γ
    :param steps: environment steps
    :param gammas: discount factors
    :param theta: initial θ
    :param gradient: see :func:`simulate`
    :param deep: also train the real algorithms (takes some minutes)
    :return: the claims with their verdicts, and the files
    """
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for agent in AGENTS:
        at, probabilities = simulate(agent, gammas, seeds=seeds, steps=steps, theta=theta, gradient=gradient)
        for g, gamma in enumerate(gammas):
            for s in range(seeds):
                rows += [
                    {"agent": agent, "gamma": gamma, "seed": s, "step": int(n), "optimal_action": float(x)}
                    for n, x in zip(at, probabilities[:, g, s], strict=True)
                ]
            last, start = probabilities[-1, g], probabilities[0, g].mean()
            ends = interval(last)
            holds = within(ends, start - 0.02, start + 0.02) if agent == "biased" else within(ends, 0.95)
            what = f"stays within 0.02 of {start:.2f}" if agent == "biased" else "is above 0.95"
            claims.append(Claim(f"{agent}, γ = {gamma}: P(optimal action) {what} after {steps} steps", holds, *ends))
    frame = pd.DataFrame(rows)
    figure = curves(
        frame, x="step", y="optimal_action", line="agent", panel="gamma", ylabel="P(optimal action)", ylim=(0.0, 1.05)
    )
    extra: dict[str, pd.DataFrame] = {}
    if deep:
        from sb3_avgcorr.paper.blind import train_blind

        blind = train_blind(seeds=min(seeds, 3))
        extra["counterexample_algorithms"] = blind
        for (algorithm, correction), last in blind.groupby(["algorithm", "correction"], sort=False)["optimal_action"]:
            stuck = correction == "none"
            what = "stays below 0.75" if stuck else "is above 0.95"
            ends = interval(last)
            holds = within(ends, high=0.75) if stuck else within(ends, 0.95)
            claims.append(Claim(f"{algorithm}, correction {correction}: P(optimal action) {what}", holds, *ends))
    note = (
        f"γ = {', '.join(map(str, gammas))}; {seeds} seeds; {steps} steps; θ starts at {theta}; {gradient} gradient; "
        "settings of the paper's table, true action values at the γ asked for, softplus output."
    )
    return write(
        Path(out),
        "counterexample",
        "The counterexample",
        note,
        frame,
        figure,
        claims,
        extra,
        f"--seeds {seeds} --steps {steps}",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = parser_for("The paper's two-state counterexample.", seeds=10, steps=100_000)
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--theta", type=float, default=0.0, help="initial θ")
    parser.add_argument("--gradient", choices=("sampled", "expected"), default="sampled")
    parser.add_argument("--no-deep", action="store_true", help="leave out PPO and A2C on the real environment")
    args = parser.parse_args(argv)
    result = run(
        args.out,
        seeds=args.seeds,
        steps=args.steps,
        gammas=args.gammas,
        theta=args.theta,
        gradient=args.gradient,
        deep=not args.no_deep,
    )
    print(result["report"])


if __name__ == "__main__":
    main()
