"""
Bias and variance of the state emphasis on DotReacher (the paper's Figure 2).

At checkpoints of a batch actor-critic run, ten buffers are drawn with the policy of the moment. The emphasis of a state in a
buffer is its visit frequency (none), times γ^t (power) or times f(s) (averaging), both times (1-γ)·T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.paper.dot_reacher import HORIZON, estimates, make, mdp_of, probabilities
from sb3_avgcorr.reporting.claims import Claim, between
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import Estimate, interval
from sb3_avgcorr.runs.jobs import FunctionJob
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, frame_of

Array = npt.NDArray[np.float64]
#: steps between checkpoints
EVERY = 2000


def emphasis_errors(
    states: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], c: Array, d_gamma: Array, gamma: float
) -> Any:
    """
    Squared bias and variance of the emphasis, both weighted by the mean visit frequency.

    :param states: states of the buffers, shape (buffers, samples)
    :param steps: step of each sample inside its episode, same shape
    :param c: ĉ(s) of every state, the averaging correction
    :param d_gamma: d_{π,γ}(s), the right emphasis
    :param gamma: discount factor
    :return: variant -> (squared bias, variance)
    """
    n_states, samples = len(d_gamma), states.shape[1]
    scale = (1 - gamma) * HORIZON
    powers = gamma ** steps.astype(np.float64)

    def per_state(weights: Array | None) -> Array:
        rows = [np.bincount(s, None if weights is None else weights[b], n_states) for b, s in enumerate(states)]
        return np.array(rows, dtype=np.float64)

    count = per_state(None)
    frequency = count / samples
    mean_power = np.divide(per_state(powers), count, out=np.zeros_like(count), where=count > 0)
    mean_square = np.divide(per_state(powers**2), count, out=np.zeros_like(count), where=count > 0)
    weight = frequency.mean(axis=0)
    emphasis = {
        "none": (frequency, np.zeros_like(frequency)),
        # a sample's own γ^t varies inside a buffer, too: law of total variance
        "power": (frequency * scale * mean_power, (frequency * scale) ** 2 * np.maximum(mean_square - mean_power**2, 0.0)),
        "averaging": (frequency * c, np.zeros_like(frequency)),
    }
    return {
        agent: (
            float(weight @ (e.mean(axis=0) - d_gamma) ** 2),
            float(weight @ (e.var(axis=0) + inside.mean(axis=0))),
        )
        for agent, (e, inside) in emphasis.items()
    }


def measure(
    *,
    seed: int,
    steps: int,
    tell: Callable[[int], None],
    start: Any = "uniform",
    every: int = EVERY,
    buffers: int = 10,
    buffer_size: int = 2500,
) -> dict[str, list[Any]]:
    """
    Train one agent, and measure at checkpoints.

    :param seed: seed of everything
    :param steps: environment steps of the run
    :param tell: is called with the steps done so far
    :param start: where episodes start; the paper: uniform
    :param every: steps between checkpoints
    :param buffers: buffers drawn at each; the paper: 10
    :param buffer_size: samples in each, a multiple of the 500 steps of an episode
    :return: columns step, agent, squared_bias and variance
    """
    if buffer_size < HORIZON or buffer_size % HORIZON:
        raise ValueError(f"buffer_size={buffer_size} must be a multiple of {HORIZON}, the length of an episode")
    model = make("shared", seed, start=start)
    mdp = mdp_of(model)
    found: dict[str, list[Any]] = {"step": [], "agent": [], "squared_bias": [], "variance": []}
    for done in range(0, steps + 1, every):
        if done:
            model.learn(every, reset_num_timesteps=False)
        pi = probabilities(model, mdp)
        episodes = buffers * (buffer_size // HORIZON)
        samples = mdp.sample(pi, HORIZON, episodes, horizon=HORIZON, rng=np.random.default_rng([seed, done]))
        states, t = (array.T.reshape(buffers, buffer_size) for array in (samples.states, samples.steps))
        errors = emphasis_errors(states, t, estimates(model, mdp), mdp.d_gamma(pi), model.gamma)
        for agent, (bias, variance) in errors.items():
            for name, value in (("step", done), ("agent", agent), ("squared_bias", bias), ("variance", variance)):
                found[name].append(value)
        tell(done)
    return found


@dataclass(frozen=True)
class Bias(Experiment):
    """
    Bias and variance of the emphasis along a run.

    :param settings: further arguments of :func:`measure`
    """

    settings: tuple[tuple[str, Any], ...] = ()
    name: str = "bias"
    where: str = "Fig. 2"
    purpose: str = "bias and variance of the state emphasis"

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        steps = size.steps or (40_000 if size.full else 20_000)
        every = dict(self.settings).get("every", EVERY)
        if steps < every:
            raise UserError(
                f"--steps is {steps}; {self.name} looks at the agent every {every} steps, so it must be at least that."
            )
        return {
            "averaging": [
                FunctionJob(f"{__name__}.measure", seed, steps, "averaging", dict(self.settings)) for seed in range(seeds)
            ]
        }

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        return self.findings(frame_of(plan, outcome, ("trained",)).drop(columns="trained"))

    def findings(self, frame: pd.DataFrame) -> Findings:
        """
        What the figures say.

        :param frame: squared bias and variance by agent, seed and step
        """
        base, steps = frame[["agent", "seed", "step"]], int(frame["step"].max())
        long = pd.concat(
            [
                base.assign(measure="squared bias", value=frame["squared_bias"]),
                base.assign(measure="variance", value=frame["variance"]),
            ]
        )
        figure = curves(
            long, x="step", y="value", line="agent", panel="measure", ylabel="weighted by visit frequency", log=True
        )
        claims, rows = [], []
        later = frame[frame["step"] > steps // 4]
        for measure in ("squared_bias", "variance"):
            wide = later.pivot_table(index=["seed", "step"], columns="agent", values=measure)
            for other in ("power", "none"):
                logarithm = interval((wide["averaging"] / wide[other]).map(np.log).groupby("seed").mean())
                ratio = Estimate(*np.exp(logarithm).tolist())
                if (measure, other) == ("variance", "none"):  # of which the paper says nothing
                    rows.append([f"variance of averaging to that of {other} (geometric mean of the ratio)", ratio.text(3)])
                    continue
                text = f"{measure.replace('_', ' ')} of averaging is below that of {other} (geometric mean of the ratio)"
                claims.append(Claim(text, between(logarithm, high=0.0), ratio, f"after {steps // 4} steps"))
        note = (
            "Batch actor-critic with the averaging correction on DotReacher, shared network, γ = 0.99, the paper's settings; "
            f"{frame['seed'].nunique()} seed(s), {steps} steps. At each checkpoint ten buffers are drawn. The head is the "
            "run's own, untouched by the buffers. Intervals are over seeds, of the mean over checkpoints."
        )
        picture = Picture(f"{self.name}.png", "Bias and variance of the emphasis", figure)
        section = Section(pictures=[picture], claims=claims, tables=[Table(["figure", "mean (95 % interval)"], rows)])
        return Findings(self.name, "Bias and variance of the emphasis", [note], [section], {self.name: frame})
