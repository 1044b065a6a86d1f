"""
Returns of three batch actor-critic agents on DotReacher (the paper's Appendix E).

``python -m sb3_avgcorr.paper.dot_reacher_returns --out DIR``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sb3_avgcorr.paper.dot_reacher import POINTS, train
from sb3_avgcorr.reporting.figures import Claim, curves, interval, parser_for, write

AGENTS: dict[str, str | None] = {"biased": None, "power": "power", "averaging": "averaging"}


def run(out: Path | str, *, seeds: int = 10, steps: int = 40_000, start: Any = "uniform") -> dict[str, Any]:
    """
    Train the three agents, all with the settings the paper tuned for the shared correction network.

    :param out: directory for ``dotreacher_returns.csv``, ``.png`` and ``.md``
    :param seeds: runs of each agent
    :param steps: environment steps
    :param start: where episodes start; the paper: uniform
    :return: the claims with their verdicts, and the files
    """
    frames = []
    for agent, correction in AGENTS.items():
        for seed in range(seeds):
            frame = train(
                "shared", seed, steps, bias=False, every=max(100, steps // POINTS), start=start, correction=correction
            )
            frames.append(frame.assign(agent=agent, seed=seed))
    frame = pd.concat(frames, ignore_index=True)
    figure = curves(frame, x="step", y="return", line="agent", ylabel="return of an episode (500 steps)")
    mean_return = {agent: frame[frame["agent"] == agent].groupby("seed")["return"].mean().to_numpy() for agent in AGENTS}
    claims = []
    for other in ("biased", "power"):
        mean, low, high = interval(mean_return["averaging"] - mean_return[other])
        verdict = None if low <= 0 <= high else low > 0
        claims.append(
            Claim(f"averaging has the higher mean return over training than {other} (difference)", verdict, mean, low, high)
        )
    for agent, values in mean_return.items():
        claims.append(Claim(f"mean return over training, {agent}", None, *interval(values), decides=False))
    note = (
        f"DotReacher, start {start}; {seeds} seeds, {steps} steps; all three agents with the settings the paper gives for the "
        "shared correction network (it gives none for the other two), so only the weights differ. The shortest way to the "
        "centre earns about -3.7 an episode. Bands: 95 % bootstrap intervals of the mean."
    )
    return write(
        Path(out),
        "dotreacher_returns",
        "Returns on DotReacher",
        note,
        frame,
        figure,
        claims,
        arguments=f"--seeds {seeds} --steps {steps}",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = parser_for("Returns of three batch actor-critic agents on DotReacher.", seeds=10, steps=40_000)
    parser.add_argument("--start", choices=("uniform", "corner"), default="uniform")
    args = parser.parse_args(argv)
    print(run(args.out, seeds=args.seeds, steps=args.steps, start=args.start)["report"])


if __name__ == "__main__":
    main()
