"""
Table 1 of the paper again: how far are the initial states from the sampled ones along a training run of PPO?

The paper's measure after every rollout (8 bins a dimension, 5000 resets, 5 dimensions at random where there are more, the mean
of 10 such draws), and after the last one everything that ``diagnose`` measures. Runs that are finished are not run again::

    python benchmarks/table1_distances.py --steps 40000 --seeds 3 --runs runs/table1

writes docs/results/table1_distances.csv, .png, and the table of the .md to stdout. The paper trained for 2M steps, ten
seeds, with settings tuned for each task; here SB3's PPO has the same settings everywhere.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import sb3_avgcorr  # noqa: F401  # registers PointMass
from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback
from sb3_avgcorr.diagnostics.distances import Columns, histogram_distance
from sb3_avgcorr.diagnostics.estimates import blocks_of

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT = 4000
#: task -> (environment, discount factor of the paper's best setting, distance in the paper's Table 1)
TASKS = {
    "Walker2d": ("Walker2d-v4", 0.995, 0.0641),
    "Ant": ("Ant-v4", 0.99, 0.0608),
    "HalfCheetah": ("HalfCheetah-v4", 0.99, 0.0952),
    "Swimmer": ("Swimmer-v4", 0.995, 0.2817),
    "PointMass": ("avgcorr/PointMassEasy-v0", 0.995, 0.2712),
    "MountainCarContinuous": ("MountainCarContinuous-v0", 0.995, 0.5552),
}
MEASURES = ("distance", "classifier_distance", "total_variation", "explained_variance", "gradient_angle")


class Distances(CorrectionDiagnosticsCallback):
    """The paper's distance after every rollout, beside the whole diagnosis now and then."""

    def __init__(self, env_id: str, seed: int, every: int) -> None:
        super().__init__(every=every, reset_env=env_id, seed=seed)
        self.distances: list[float] = []

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        assert self._starts is not None
        buffer = self.model.rollout_buffer
        starts = Columns(self._starts.batch(), self._starts.space)
        sampled = Columns(buffer.observations.reshape(-1, *buffer.obs_shape), self._starts.space)
        # one block a sample is enough: the interval over rollouts and seeds is the one reported
        blocks = blocks_of(np.zeros(buffer.rewards.shape, dtype=np.int64), self.rng)
        self.distances.append(float(histogram_distance(starts, sampled, blocks, self.rng)))


def run(task: str, seed: int, steps: int, folder: Path) -> dict:
    path = folder / f"{task}-{steps}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    env_id, gamma, _ = TASKS[task]
    env = make_vec_env(env_id, 1, seed=seed)
    model = PPO("MlpPolicy", env, n_steps=ROLLOUT, batch_size=500, gamma=gamma, seed=seed, device="cpu")
    callback = Distances(env_id, seed, every=max(1, steps // ROLLOUT))
    model.learn(steps, callback=callback)
    result = {"task": task, "seed": seed, "steps": steps, "distances": callback.distances, "history": callback.history}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result))
    os.replace(part, path)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--report", action="store_true", help="report the runs that are finished, run none")
    options = parser.parse_args()
    th.set_num_threads(1)
    gym.logger.min_level = gym.logger.ERROR  # the paper's versions of the tasks are called out of date
    options.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(task, seed) for seed in range(options.seeds) for task in options.tasks]
    if options.report:
        jobs = [(t, s) for t, s in jobs if (options.runs / f"{t}-{options.steps}-{s}.json").exists()]
    results = [run(task, seed, options.steps, options.runs) for task, seed in jobs]

    rows = []
    print("| task | paper | here (min to max of the seeds) | classifier TV | TV discounted | explained | angle (known in) |")
    print("|---|---|---|---|---|---|---|")
    for task in options.tasks:
        mine = [r for r in results if r["task"] == task]
        if not mine:
            continue
        means = [float(np.mean(r["distances"])) for r in mine]
        history = [row for r in mine for row in r["history"]]
        later = {name: [row[name] for row in history] for name in MEASURES}
        # an interval of 0° to 180°: the gradient of one rollout is lost in noise, and its angle is no number to average
        later["gradient_angle"] = [row["gradient_angle"] for row in history if row["gradient_angle_high"] < 180.0]
        angles = later["gradient_angle"]
        angle = f"{np.mean(angles):.0f}° ({len(angles)} of {len(history)})" if angles else "lost in noise"
        row = {
            "task": task,
            "seeds": len(mine),
            "paper": TASKS[task][2],
            "here": float(np.mean(means)),
            "low": min(means),
            "high": max(means),
        }
        row.update({f"mean_{name}": float(np.mean(values)) if values else float("nan") for name, values in later.items()})
        rows.append(row)
        print(
            f"| {task} | {row['paper']:.3f} | {row['here']:.3f} ({row['low']:.3f} to {row['high']:.3f}) "
            f"| {row['mean_classifier_distance']:.2f} | {row['mean_total_variation']:.2f} "
            f"| {row['mean_explained_variance']:.2f} | {angle} |"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "table1_distances.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)

    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(rows))
    here = np.array([row["here"] for row in rows])
    ends = np.abs(np.array([[row["low"] for row in rows], [row["high"] for row in rows]]) - here)
    axes.bar(place - 0.2, [row["paper"] for row in rows], 0.38, color="#999999", label="paper, 2M steps")
    axes.bar(place + 0.2, here, 0.38, yerr=ends, color="#1f6fb4", label=f"here, {options.steps} steps")
    axes.set_xticks(place, [row["task"] for row in rows], rotation=15)
    axes.set_ylabel("max-norm distance, initial vs sampled states")
    axes.legend()
    figure.savefig(options.out / "table1_distances.png", dpi=120)


if __name__ == "__main__":
    main()
