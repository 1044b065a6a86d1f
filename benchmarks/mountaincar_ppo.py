"""
When does PPO solve MountainCarContinuous with the paper's settings?

    python benchmarks/mountaincar_ppo.py            # prints the table of docs/results/mountaincar_ppo.md
    python benchmarks/mountaincar_ppo.py --write    # and draws its figure

Both are made of docs/results/mountaincar_ppo.csv: the mean return of the episodes of each rollout, a row a rollout. Those of
the authors' program were measured by running it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sb3_avgcorr.reporting.figures import COLOURS, thousands

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
SETTINGS = {
    "own": "each with its own settings",
    "equal": "all with averaging's settings",
    "authors": "the authors' program (own settings)",
}
VARIANTS = ("averaging_ppo", "ppo", "power_ppo")
SOLVED, EARLY, STAYS = 80.0, 60_000, 3


def first(run: pd.Series) -> int | None:
    """
    When a run is above ``SOLVED`` for the first time.

    :param run: mean returns by step
    :return: the step
    """
    above = run.index[run > SOLVED]
    return int(above[0]) if len(above) else None


def first_that_stays(run: pd.Series) -> int | str:
    """
    From where a run is above ``SOLVED`` for ``STAYS`` rollouts.

    :param run: mean returns by step
    :return: the step; ``?`` where the run ended too early to say
    """
    above = (run > SOLVED).to_numpy()
    for place in above.nonzero()[0]:
        if above[place : place + STAYS].all():
            return int(run.index[place]) if place + STAYS <= len(run) else "?"
    return never(run)


def never(run: pd.Series) -> str:
    """
    What is said of a run that does not come there.

    :param run: mean returns by step
    """
    return f"not in {thousands(run.index[-1])}"


def table(runs: dict[tuple[str, str], list[pd.Series]]) -> list[str]:
    """
    The table, line by line.

    :param runs: by settings and variant, a run a seed
    """

    def said(values: list[int | str]) -> str:
        return ", ".join(value if isinstance(value, str) else thousands(value) for value in values)

    lines = [
        "| settings | algorithm | first rollout above 80, by seed | within 60k | from where it stayed so 3 rollouts |",
        "|---|---|---|---|---|",
    ]
    for (settings, variant), group in runs.items():
        times = [first(run) for run in group]
        early = sum(time is not None and time <= EARLY for time in times)
        reached = said([never(run) if time is None else time for run, time in zip(group, times, strict=True)])
        stayed = said([first_that_stays(run) for run in group])
        lines.append(f"| {SETTINGS[settings]} | `{variant}` | {reached} | {early} of {len(group)} | {stayed} |")
    return lines


def draw(runs: dict[tuple[str, str], list[pd.Series]]) -> Figure:
    """
    Every run as a line, a panel for each of the settings.

    :param runs: by settings and variant, a run a seed
    """
    figure = Figure(figsize=(12.0, 3.4), layout="constrained")
    axes = dict(zip(SETTINGS, figure.subplots(1, len(SETTINGS), sharey=True), strict=True))
    for (settings, variant), group in runs.items():
        for number, run in enumerate(group):
            label = variant if number == 0 else None
            axes[settings].plot(run.index, run, color=COLOURS[variant], linewidth=1.0, alpha=0.7, label=label)
    for settings, axis in axes.items():
        axis.axhline(SOLVED, color="0.7", linewidth=0.8, zorder=0)
        axis.set_title(SETTINGS[settings], fontsize=10)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(FuncFormatter(thousands))
        axis.spines[["top", "right"]].set_visible(False)
    axes["own"].set_ylabel("mean return of a rollout's episodes")
    axes["own"].legend(frameon=False, fontsize=9, loc="center right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="draw the figure of the page, too")
    args = parser.parse_args()
    rows = pd.read_csv(RESULTS / "mountaincar_ppo.csv")
    shared = rows[(rows["settings"] == "own") & (rows["variant"] == "averaging_ppo")]  # its own settings are the equal ones
    rows = pd.concat([rows, shared.assign(settings="equal")])
    runs = {
        (settings, variant): [
            run.set_index("steps")["mean_return"]
            for _, run in rows[(rows["settings"] == settings) & (rows["variant"] == variant)].groupby("seed")
        ]
        for settings in SETTINGS
        for variant in VARIANTS
    }
    print("\n".join(table(runs)))
    if args.write:
        draw(runs).savefig(RESULTS / "mountaincar_ppo.png", dpi=110)


if __name__ == "__main__":
    main()
