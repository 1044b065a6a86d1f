"""
Bias and variance of the state emphasis on DotReacher (the paper's Figure 2).

At checkpoints of a batch actor-critic run, ten buffers are drawn with the policy of the moment. The emphasis of a state in a
buffer is its visit frequency (biased), times γ^t (power) or times f(s) (averaging), both times (1-γ)·T.
``python -m sb3_avgcorr.paper.bias --out DIR``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.paper.dot_reacher import HORIZON, estimates, make, mdp_of, probabilities
from sb3_avgcorr.reporting.figures import Claim, curves, interval, parser_for, within, write

Array = npt.NDArray[np.float64]


def emphasis_errors(
    states: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], c: Array, d_gamma: Array, gamma: float
) -> Any:
    """
    Squared bias and variance of the emphasis, both weighed by the mean visit frequency.

    :param states: states of the buffers, shape (buffers, samples)
    :param steps: step of each sample inside its episode, same shape
    :param c: ĉ(s) of every state, the averaging correction
    :param d_gamma: d_{π,γ}(s), the right emphasis
    :param gamma: discount factor
    :return: agent -> (squared bias, variance)
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
        "biased": (frequency, np.zeros_like(frequency)),
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


def run(
    out: Path | str,
    *,
    seeds: int = 1,
    steps: int = 40_000,
    every: int = 2000,
    buffers: int = 10,
    buffer_size: int = 2500,
    start: Any = "uniform",
) -> dict[str, Any]:
    """
    Train one agent a seed, and measure at checkpoints.

    :param out: directory for ``emphasis.csv``, ``.png`` and ``.md``
    :param seeds: runs; the paper: 1
    :param steps: environment steps of the run
    :param every: steps between checkpoints
    :param buffers: buffers drawn at each; the paper: 10
    :param buffer_size: samples in each, a multiple of the 500 steps of an episode
    :param start: where episodes start; the paper: uniform
    :return: the claims with their verdicts, and the files
    """
    if buffer_size < HORIZON or buffer_size % HORIZON:
        raise ValueError(f"buffer_size={buffer_size} must be a multiple of {HORIZON}, the length of an episode")
    rows = []
    for seed in range(seeds):
        model = make("shared", seed, start=start)
        mdp = mdp_of(model)
        for done in range(0, steps + 1, every):
            if done:
                model.learn(every, reset_num_timesteps=False)
            pi = probabilities(model, mdp)
            episodes = buffers * (buffer_size // HORIZON)
            samples = mdp.sample(pi, HORIZON, episodes, horizon=HORIZON, rng=np.random.default_rng([seed, done]))
            states, t = (array.T.reshape(buffers, buffer_size) for array in (samples.states, samples.steps))
            errors = emphasis_errors(states, t, estimates(model, mdp), mdp.d_gamma(pi), model.gamma)
            for agent, (bias, variance) in errors.items():
                rows.append({"seed": seed, "step": done, "agent": agent, "squared_bias": bias, "variance": variance})
    settings = f"{seeds} seed(s), {buffers} buffers of {buffer_size} samples at each checkpoint"
    return report(pd.DataFrame(rows), Path(out), seeds, steps, f"start {start}, {settings}")


def report(frame: pd.DataFrame, out: Path, seeds: int, steps: int, settings: str) -> dict[str, Any]:
    """
    :param frame: squared bias and variance of each agent, by seed and step
    :param out: directory for ``emphasis.csv``, ``.png`` and ``.md``
    :param seeds: number of seeds
    :param steps: environment steps
    :param settings: in words
    :return: the claims with their verdicts, and the files
    """
    base = frame[["agent", "seed", "step"]]
    long = pd.concat(
        [
            base.assign(measure="squared bias", value=frame["squared_bias"]),
            base.assign(measure="variance", value=frame["variance"]),
        ]
    )
    figure = curves(long, x="step", y="value", line="agent", panel="measure", ylabel="weighed by visit frequency", log=True)
    claims = []
    later = frame[frame["step"] > steps // 4]
    for measure in ("squared_bias", "variance"):
        wide = later.pivot_table(index=["seed", "step"], columns="agent", values=measure)
        for other in ("power", "biased"):
            logarithm = (wide["averaging"] / wide[other]).map(np.log)
            ends = interval(logarithm.groupby("seed").mean())
            # of the uncorrected estimate's variance the paper says nothing
            claimed = (measure, other) != ("variance", "biased")
            holds = within(ends, high=0.0) if claimed else None
            mean, low, high = np.exp(ends).tolist()
            text = f"{measure} of averaging is below that of {other} after {steps // 4} steps (geometric mean of the ratio)"
            claims.append(Claim(text, holds, mean, low, high, decides=claimed))
    note = (
        "Batch actor-critic with the averaging correction on DotReacher, shared network, γ = 0.99, the paper's settings; "
        f"{settings}. The head is the "
        "run's own, untouched by the buffers. Intervals are over seeds, of the mean over checkpoints."
    )
    return write(
        out,
        "emphasis",
        "Bias and variance of the emphasis",
        note,
        frame,
        figure,
        claims,
        arguments=f"--seeds {seeds} --steps {steps}",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = parser_for("Bias and variance of the state emphasis on DotReacher.", seeds=1, steps=40_000)
    parser.add_argument("--every", type=int, default=2000)
    parser.add_argument("--buffers", type=int, default=10)
    parser.add_argument("--buffer-size", type=int, default=2500)
    parser.add_argument("--start", choices=("uniform", "corner"), default="uniform")
    args = parser.parse_args(argv)
    result = run(
        args.out,
        seeds=args.seeds,
        steps=args.steps,
        every=args.every,
        buffers=args.buffers,
        buffer_size=args.buffer_size,
        start=args.start,
    )
    print(result["report"])


if __name__ == "__main__":
    main()
