"""
Bias ratio on DotReacher (the paper's Appendix E), for a shared and a separate correction network, and the residual bias.

``python -m sb3_avgcorr.paper.bias_ratio --out DIR``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd

from sb3_avgcorr.paper.dot_reacher import POINTS, Network, train
from sb3_avgcorr.reporting.figures import Claim, curves, interval, parser_for, write


def run(
    out: Path | str,
    *,
    seeds: int = 10,
    steps: int = 40_000,
    networks: Sequence[str] = ("shared", "separate"),
    start: Any = "uniform",
) -> dict[str, Any]:
    """
    Train batch actor-critic with the paper's settings and follow both measures.

    :param out: directory for ``bias_ratio.csv``, ``.png`` and ``.md``
    :param seeds: runs of each network
    :param steps: environment steps
    :param networks: ``"shared"`` and ``"separate"``
    :param start: where episodes start; the paper: uniform
    :return: the claims with their verdicts, and the files
    """
    frames = []
    for network in networks:
        for seed in range(seeds):
            frame = train(cast(Network, network), seed, steps, every=max(100, steps // POINTS), start=start)
            frames.append(frame.assign(network=network, seed=seed))
    frame = pd.concat(frames, ignore_index=True)
    long = pd.concat(
        [
            frame[["network", "seed", "step"]].assign(measure="bias ratio (Appendix E)", value=frame["ratio"]),
            frame[["network", "seed", "step"]].assign(measure="residual bias", value=frame["residual"]),
        ]
    )
    figure = curves(
        long, x="step", y="value", line="network", panel="measure", ylabel="1 = no correction", log=True, hline=1.0
    )
    claims = []
    for network in networks:
        part = frame[frame["network"] == network]
        early = part[part["step"] <= max(steps // 4, part["step"].min())].groupby("seed")["ratio"].mean()
        late = part[part["step"] > 3 * steps // 4].groupby("seed")
        for what, values in (
            (f"bias ratio below 1 over the first {steps // 4} steps", early),
            (f"bias ratio below 1 over the last {steps // 4} steps", late["ratio"].mean()),
            (f"residual bias below 1 over the last {steps // 4} steps", late["residual"].mean()),
        ):
            mean, low, high = interval(values)
            claims.append(Claim(f"{network}: {what}", None if low < 1 <= high else high < 1, mean, low, high))
    note = (
        f"Batch actor-critic with the averaging correction on DotReacher, start {start}, the settings of the paper's table "
        f"for each network; {seeds} seeds, {steps} steps. The bias ratio is taken over the buffers of 25 and 45 samples "
        "it trains on, where it is mostly sampling noise; the residual bias is free of that: 0 is a perfect correction, 1 is "
        "none, above 1 is harm. "
        "Bands: 95 % bootstrap intervals of the mean."
    )
    return write(
        Path(out),
        "bias_ratio",
        "Bias ratio on DotReacher",
        note,
        frame,
        figure,
        claims,
        arguments=f"--seeds {seeds} --steps {steps}",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = parser_for("Bias ratio and residual bias on DotReacher.", seeds=10, steps=40_000)
    parser.add_argument("--start", choices=("uniform", "corner"), default="uniform")
    args = parser.parse_args(argv)
    print(run(args.out, seeds=args.seeds, steps=args.steps, start=args.start)["report"])


if __name__ == "__main__":
    main()
