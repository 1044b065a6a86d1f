"""
Does the fast path learn the same? AveragingPPO with ``fast=True`` and ``fast=False``, otherwise equal.

    python benchmarks/fast_learning.py --runs runs/fast_learning

trains with our settings for CartPole and Pendulum (without gSDE, for which there is no fast path), with SB3's defaults for
Hopper, and writes benchmarks/results/fast_learning.{md,csv}. Runs are resumed and never made twice.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from sb3_avgcorr.reporting.progress import Display
from sb3_avgcorr.reporting.statistics import areas, curve, difference, finals, interval
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.studies.safety import SB3_DEFAULTS

RESULTS = Path(__file__).parent / "results"
#: task -> steps, settings
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (50_000, {}),
    "Pendulum-v1": (60_000, {"use_sde": False}),
    "Hopper-v5": (100_000, SB3_DEFAULTS),
}
BINS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/fast_learning"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    args = parser.parse_args()
    jobs = {
        (env, fast, seed): Job("averaging_ppo", env, seed, steps, f"fast={fast}", hyperparams={**settings, "fast": fast})
        for seed in range(args.seeds)
        for env, (steps, settings) in TASKS.items()
        for fast in (True, False)
    }
    results = run_jobs(list(jobs.values()), args.runs, workers=args.jobs, observer=Display()).results
    lines = [
        "# Learning with and without the fast path",
        "",
        f"Made by `python benchmarks/fast_learning.py --seeds {args.seeds}`: AveragingPPO with the settings of",
        "hyperparams/averaging_ppo.yml (Pendulum without gSDE; Hopper with SB3's defaults), equal but for `fast`.",
        "Means with Student's 95 % intervals, differences with Welch's.",
        "",
        "| task | measure | `fast=True` | `fast=False` | difference |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for env, (steps, _) in TASKS.items():
        curves = {
            fast: [curve(results[jobs[env, fast, seed]], steps // BINS, steps) for seed in range(args.seeds)]
            for fast in (True, False)
        }
        for name, measure in (("mean over training", areas), ("last tenth", finals)):
            fast, plain = measure(curves[True]), measure(curves[False])
            lines.append(
                f"| {env}, {steps:,} steps | {name} | {interval(fast)} | {interval(plain)} | {difference(fast, plain)} |"
            )
            rows += [
                {"task": env, "measure": name, "fast": key, "seed": seed, "return": value}
                for key, values in ((True, fast), (False, plain))
                for seed, value in enumerate(values)
            ]
    RESULTS.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(RESULTS / "fast_learning.csv", index=False, float_format="%.6g")
    (RESULTS / "fast_learning.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
