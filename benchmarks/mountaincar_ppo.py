"""
PPO on MountainCarContinuous-v0 with the paper's settings: how many steps until the mean return is above 80?

Two comparisons, because only the second isolates the correction:

- ``own``: each variant with the settings the authors tuned for it (``hyperparams/paper/<algorithm>.yml``);
- ``equal``: all three with the settings they tuned for the averaging correction.

Every run is ``sb3-avgcorr train``, that is RL Zoo's experiment manager. Runs that are finished are not run again::

    python benchmarks/mountaincar_ppo.py --seeds 5 --jobs 2 --runs runs/mountaincar_ppo

writes docs/results/mountaincar_ppo.csv, .png, and the tables of the .md to stdout. ``--reference FILE`` adds the curves of the
authors' own program to both (JSON: ``{"steps_per_point": n, "runs": [{"variant", "seed", "returns"}, ...]}``).
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy.stats import mannwhitneyu
from stable_baselines3.common.callbacks import BaseCallback

ROOT = Path(__file__).resolve().parents[1]
ENV = "MountainCarContinuous-v0"
ROLLOUT = 4000
SOLVED = 80.0
HELD = 3  # rollouts in a row, so that a lucky one does not count
# The critic of a variant without a correction network is fitted in passes of its own, as long and as fast as in averaging's.
EQUAL = ["critic_epochs:80", "critic_learning_rate:0.0044"]

#: (settings, variant) -> algorithm, hyperparameters that differ from its file
VARIANTS: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("own", "averaging"): ("averaging_ppo", []),
    ("own", "none"): ("ppo", []),
    ("own", "power"): ("power_ppo", []),
    ("equal", "none"): ("averaging_ppo", ["correction:None", *EQUAL]),
    ("equal", "power"): ("averaging_ppo", ["correction:'power'", *EQUAL]),
}


class ReturnPerRollout(BaseCallback):
    """
    Writes the mean return of the episodes that ended in each rollout, and ends a run that has held its solution for a while.

    :param path: file for the returns
    :param at_least: steps to run in any case
    """

    def __init__(self, path: str, at_least: int) -> None:
        super().__init__()
        self.path, self.at_least = Path(path), at_least
        self.curve: list[float | None] = []
        self.episodes: list[float] = []

    def _on_step(self) -> bool:
        self.episodes += [float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return self.num_timesteps < self.at_least or not self.solved

    def _on_rollout_end(self) -> None:
        self.curve.append(float(np.mean(self.episodes)) if self.episodes else None)
        self.episodes.clear()
        self.path.with_suffix(".part").write_text(json.dumps(self.curve))

    @property
    def solved(self) -> bool:
        return first_above(self.curve, HELD) is not None


def first_above(curve: list[float | None], held: int = 1) -> int | None:
    """
    :param curve: mean return per rollout
    :param held: rollouts in a row
    :return: steps after which it was above 80 for the first time, and in the following rollouts, too
    """
    above = [value is not None and value > SOLVED for value in curve]
    return next((ROLLOUT * (i + 1) for i in range(len(above) - held + 1) if all(above[i : i + held])), None)


def run(settings: str, variant: str, seed: int, folder: Path, steps: int, at_least: int) -> None:
    """Train one agent in a process of its own, unless that was done before."""
    result = folder / f"{settings}_{variant}_{seed}.json"
    if result.exists():
        return
    algo, params = VARIANTS[settings, variant]
    callback = [{"mountaincar_ppo.ReturnPerRollout": {"path": str(result), "at_least": at_least}}]
    command = [sys.executable, "-m", "sb3_avgcorr.zoo", "train", "--paper", "--algo", algo, "--env", ENV, "--seed", str(seed)]
    command += [
        "-n",
        str(steps),
        "--eval-freq",
        "-1",
        "--num-threads",
        "1",
        "-f",
        str(folder / "logs"),
        "--verbose",
        "0",
        "-uuid",
    ]
    command += ["-params", *params, f"callback:{callback!r}"]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with (folder / f"{result.stem}.log").open("w") as log:
        subprocess.run(command, check=True, env=environment, stdout=log, stderr=subprocess.STDOUT)
    result.with_suffix(".part").rename(result)
    print(
        f"{settings:6} {variant:9} seed {seed}: above 80 after {first_above(json.loads(result.read_text()))} steps", flush=True
    )


def read_runs(folder: Path, reference: Path | None, at_least: int) -> dict[tuple[str, str], dict[int, list[float | None]]]:
    """
    Runs that were broken off count as far as they came, if that is far enough: a run ends early when it is solved, so leaving
    out the unfinished ones would leave out the failures.

    :return: curves by (settings, variant) and seed
    """
    curves: dict[tuple[str, str], dict[int, list[float | None]]] = defaultdict(dict)
    for path in sorted(folder.glob("*.part")) + sorted(folder.glob("*.json")):
        settings, variant, seed = path.stem.split("_")
        curve = json.loads(path.read_text())
        if path.suffix == ".json" or ROLLOUT * len(curve) >= at_least:
            curves[settings, variant][int(seed)] = curve
    # Averaging is the same run in both comparisons; alone it is none.
    if any(settings == "equal" for settings, _ in curves):
        curves["equal", "averaging"] = curves.get(("own", "averaging"), {})
    if reference is not None:
        data = json.loads(reference.read_text())
        assert data["steps_per_point"] == ROLLOUT
        for entry in data["runs"]:
            curves["authors", entry["variant"]][entry["seed"]] = entry["returns"]
    return curves


def write(curves: dict[tuple[str, str], dict[int, list[float | None]]], output: Path) -> None:
    """Write the CSV and the figure, and print the table."""
    from matplotlib.figure import Figure

    names = {"averaging": "averaging_ppo", "none": "ppo", "power": "power_ppo"}
    titles = {
        "own": "each with its own settings",
        "equal": "all with averaging's settings",
        "authors": "the authors' program (own settings)",
    }
    with output.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["settings", "variant", "seed", "steps", "mean_return"])
        for (settings, variant), seeds in sorted(curves.items()):
            for seed, curve in sorted(seeds.items()):
                if settings == "equal" and variant == "averaging":
                    continue
                for i, value in enumerate(curve):
                    writer.writerow(
                        [settings, names[variant], seed, ROLLOUT * (i + 1), "" if value is None else f"{value:.2f}"]
                    )

    shown = [s for s in titles if any(settings == s and seeds for (settings, _), seeds in curves.items())]
    figure = Figure(figsize=(4.2 * len(shown), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    print(f"| settings | algorithm | first rollout above 80, by seed | within 60k | from where it stayed so {HELD} rollouts |")
    print("|---|---|---|---|---|")
    for axis, settings in zip(axes, shown, strict=True):
        for color, variant in enumerate(names):
            seeds = curves.get((settings, variant), {})
            for i, (_, curve) in enumerate(sorted(seeds.items())):
                x = ROLLOUT * np.arange(1, len(curve) + 1)
                y = np.array([np.nan if value is None else value for value in curve])
                axis.plot(x / 1000, y, color=f"C{color}", alpha=0.7, linewidth=1.2, label=names[variant] if i == 0 else None)
            found = [curve for _, curve in sorted(seeds.items())]
            soon = sum((first_above(curve) or np.inf) <= 60_000 for curve in found)
            if found:
                cells = [", ".join(_when(curve, held) for curve in found) for held in (1, HELD)]
                print(f"| {titles[settings]} | `{names[variant]}` | {cells[0]} | {soon} of {len(found)} | {cells[1]} |")
        axis.axhline(SOLVED, color="0.4", linewidth=0.8, linestyle="--")
        axis.set_title(titles[settings], fontsize=10)
        axis.set_xlabel("thousand steps")
        axis.grid(alpha=0.3)
    for settings in shown:
        times = {
            variant: [first_above(curve) or 1e9 for curve in curves.get((settings, variant), {}).values()] for variant in names
        }
        for a, b in (("averaging", "none"), ("averaging", "power"), ("none", "power")):
            if times[a] and times[b]:
                p = mannwhitneyu(times[a], times[b]).pvalue
                print(f"\n{titles[settings]}, {names[a]} against {names[b]}: Mann-Whitney p = {p:.2f}")
    axes[0].set_ylabel("mean return of a rollout's episodes")
    axes[0].legend(fontsize=8)
    figure.savefig(output.with_suffix(".png"), dpi=110)


def _when(curve: list[float | None], held: int) -> str:
    first = first_above(curve, held)
    if first is None and curve[-1] is not None and curve[-1] > SOLVED:
        return "?"  # the run ended before that could be seen
    return f"{first // 1000}k" if first else f"not in {ROLLOUT * len(curve) // 1000}k"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=240_000, help="longest run")
    parser.add_argument("--at-least", type=int, default=60_000, help="shortest run; in between a run ends when it is solved")
    parser.add_argument("--runs", type=Path, default=Path("runs/mountaincar_ppo"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "mountaincar_ppo")
    parser.add_argument("--reference", type=Path)
    args = parser.parse_args()

    folder = args.runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(settings, variant, seed) for settings, variant in VARIANTS for seed in range(args.seeds)]
    with ThreadPoolExecutor(args.jobs) as pool:  # each job waits for a process of its own
        list(pool.map(lambda job: run(*job, folder, args.steps, args.at_least), jobs))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write(read_runs(folder, args.reference, args.at_least), args.out)


if __name__ == "__main__":
    main()
