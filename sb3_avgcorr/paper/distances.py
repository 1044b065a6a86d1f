"""
How far are the initial states from the sampled ones along a training run of PPO? (the paper's Table 1)

The paper's measure after every rollout (8 bins a dimension, 5000 resets, 5 dimensions at random where there are more, the mean
of 10 such draws), and after the last one everything that ``diagnose`` measures. The paper trained with settings tuned for each
task; here SB3's PPO has the same settings everywhere.

``python -m sb3_avgcorr.paper.distances --out DIR``
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback
from sb3_avgcorr.diagnostics.distances import Columns, histogram_distance
from sb3_avgcorr.diagnostics.estimates import blocks_of
from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.reporting.figures import Claim, interval, parser_for, write

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
#: where the paper finds the distance large, and where it finds it small
FAR, NEAR = ("MountainCarContinuous", "PointMass", "Swimmer"), ("HalfCheetah", "Walker2d", "Ant")
MEASURES = ("classifier_distance", "total_variation", "explained_variance", "gradient_angle")


class Distances(CorrectionDiagnosticsCallback):
    """The paper's distance after every rollout, beside the whole diagnosis now and then."""

    def __init__(self, env_id: str, seed: int, every: int) -> None:
        super().__init__(every=every, reset_env=env_id, seed=seed)
        self.distances: list[float] = []

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        assert self._starts is not None
        buffer: Any = self.model.rollout_buffer
        starts = Columns(self._starts.batch(), self._starts.space)
        sampled = Columns(buffer.observations.reshape(-1, *buffer.obs_shape), self._starts.space)
        # one block a sample is enough: the interval over rollouts and seeds is the one reported
        blocks = blocks_of(np.zeros(buffer.rewards.shape, dtype=np.int64), self.rng)
        self.distances.append(float(histogram_distance(starts, sampled, blocks, self.rng)))


def train(task: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """
    One run of PPO, which is not made again if the folder has it.

    :param task: a name of ``TASKS``
    :param seed: seed of the run
    :param steps: environment steps
    :param folder: where finished runs are kept
    :return: the distance after every rollout, and the diagnosis after the last
    """
    path = folder / f"{task}-{steps}-{seed}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
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


def run(
    out: Path | str,
    *,
    seeds: int = 3,
    steps: int = 12_000,
    tasks: Sequence[str] = tuple(TASKS),
    runs: Path | str | None = None,
) -> dict[str, Any]:
    """
    :param out: directory for ``distances.csv``, ``.png`` and ``.md``
    :param seeds: runs of each task
    :param steps: environment steps of a run; the paper: 2M
    :param tasks: names of ``TASKS``
    :param runs: where finished runs are kept; default: ``out/runs``
    :return: the claims with their verdicts, and the files
    """
    unknown = set(tasks) - set(TASKS)
    if unknown:
        raise ValueError(f"tasks must be among {', '.join(TASKS)}; got {', '.join(sorted(unknown))}")
    register_envs()
    th.set_num_threads(1)
    gym.logger.min_level = gym.logger.ERROR  # the paper's versions of the tasks are called out of date
    folder = Path(runs) if runs is not None else Path(out) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(seeds):
        for task in tasks:
            result = train(task, seed, steps, folder)
            last = result["history"][-1]
            # an interval up to 180°: lost in the noise of one rollout, and no number to average
            angle_known = last["gradient_angle_high"] < 180.0
            row = {"task": task, "seed": seed, "paper": TASKS[task][2], "distance": float(np.mean(result["distances"]))}
            row.update({f"last_{name}": last[name] for name in MEASURES})
            rows.append({**row, "last_gradient_angle": last["gradient_angle"] if angle_known else np.nan})
    return report(pd.DataFrame(rows), Path(out), seeds, steps)


def report(frame: pd.DataFrame, out: Path, seeds: int, steps: int) -> dict[str, Any]:
    """
    :param frame: what was found, a row for each task and seed
    :param out: directory for ``distances.csv``, ``.png`` and ``.md``
    :param seeds: number of seeds
    :param steps: environment steps of a run
    :return: the claims with their verdicts, and the files
    """
    tasks = list(dict.fromkeys(frame["task"]))
    by_task = {task: frame[frame["task"] == task] for task in tasks}

    def values(task: str, column: str = "distance") -> np.ndarray:
        return by_task[task][column].to_numpy(dtype=float)

    claims = []
    for far in (task for task in FAR if task in tasks):
        for near in (task for task in NEAR if task in tasks):
            mean, low, high = interval(values(far) - values(near))
            claims.append(Claim(f"distance of {far} above {near}'s", None if low <= 0 <= high else low > 0, mean, low, high))
    for task in tasks:
        angles = values(task, "last_gradient_angle")
        known = angles[~np.isnan(angles)]
        figures = {
            f"distance, {task} (paper: {TASKS[task][2]:.3f})": values(task),
            f"{task}, by a classifier": values(task, "last_classifier_distance"),
            f"{task}, TV(d_γ, d)": values(task, "last_total_variation"),
            f"{task}, angle of the gradients in degrees (known in {len(known)})": known,
        }
        claims += [Claim(what, None, *interval(x), decides=False) for what, x in figures.items() if len(x)]
    note = (
        f"{steps} steps of training ({steps // ROLLOUT} rollouts of {ROLLOUT}), {seeds} seeds (the paper: 2M steps and tuned "
        "settings); the distance is averaged over all rollouts, the other figures are what `diagnose` finds on the last one."
    )
    return write(
        out,
        "distances",
        "Distance between initial and sampled states",
        note,
        frame,
        _bars(frame, steps),
        claims,
        arguments=f"--seeds {seeds} --steps {steps}",
    )


def _bars(frame: pd.DataFrame, steps: int) -> Figure:
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    means = frame.groupby("task", sort=False)[["paper", "distance"]].mean()
    ends = [interval(part["distance"])[1:] for _, part in frame.groupby("task", sort=False)]
    errors = np.abs(np.array(ends).T - means["distance"].to_numpy())
    place = np.arange(len(means))
    axes.bar(place - 0.2, means["paper"], 0.38, color="#999999", label="paper, 2M steps")
    axes.bar(place + 0.2, means["distance"], 0.38, yerr=errors, color="#1f6fb4", label=f"here, {steps} steps")
    axes.set_xticks(place, list(means.index), rotation=15)
    axes.set_ylabel("max-norm distance, initial vs sampled states")
    axes.legend()
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = parser_for("Distance between initial and sampled states along training.", seeds=3, steps=12_000)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--runs", type=Path, help="where finished runs are kept")
    args = parser.parse_args(argv)
    print(run(args.out, seeds=args.seeds, steps=args.steps, tasks=args.tasks, runs=args.runs)["report"])


if __name__ == "__main__":
    main()
