"""
How far are the initial states from the sampled ones along a training run of PPO? (the paper's Table 1)

The runs are those of Figures 4 and 6: PPO without a correction, with the settings that the paper tuned for it on each task.
The paper's measure is taken after every rollout (8 bins a dimension, 5000 resets, 5 dimensions at random where there are more,
the mean of 10 such draws), and after the last one everything that ``diagnose`` measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback
from sb3_avgcorr.diagnostics.distances import Columns, histogram_distance
from sb3_avgcorr.diagnostics.estimates import blocks_of
from sb3_avgcorr.paper.training import Cell, Task, job_of
from sb3_avgcorr.reporting.claims import Claim, judge
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import FunctionJob, Job
from sb3_avgcorr.runs.manager import JobManager, check_job
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, results_of, sizes, with_earlier

ROLLOUT = 4000
#: task -> (environment, distance in the paper's Table 1)
TASKS = {
    "Walker2d": ("Walker2d-v4", 0.0641),
    "Ant": ("Ant-v4", 0.0608),
    "HalfCheetah": ("HalfCheetah-v4", 0.0952),
    "Swimmer": ("Swimmer-v4", 0.2817),
    "PointMass": ("avgcorr/PointMassEasy-v0", 0.2712),
    "MountainCarContinuous": ("MountainCarContinuous-v0", 0.5552),
}
#: where the paper finds the distance large, and where it finds it small
FAR, NEAR = ("MountainCarContinuous", "PointMass", "Swimmer"), ("HalfCheetah", "Walker2d", "Ant")
MEASURES = ("classifier_distance", "total_variation", "explained_variance", "gradient_angle")


class Distances(CorrectionDiagnosticsCallback):
    """
    The paper's distance after every rollout, beside the whole diagnosis now and then.

    :param env_id: the task
    :param seed: seed of what is drawn
    :param every: rollouts between diagnoses
    :param tell: is called with the steps done so far
    """

    def __init__(self, env_id: str, seed: int, every: int, tell: Callable[[int], None]) -> None:
        super().__init__(every=every, reset_env=env_id, seed=seed)
        self.distances: list[float] = []
        self.tell = tell

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        assert self._starts is not None
        buffer: Any = self.model.rollout_buffer
        starts = Columns(self._starts.batch(), self._starts.space)
        sampled = Columns(buffer.observations.reshape(-1, *buffer.obs_shape), self._starts.space)
        # one block a sample is enough: the interval over rollouts and seeds is the one reported
        blocks = blocks_of(np.zeros(buffer.rewards.shape, dtype=np.int64), self.rng)
        self.distances.append(float(histogram_distance(starts, sampled, blocks, self.rng)))
        self.tell(self.num_timesteps)


def run_of(task: str, seed: int, steps: int) -> Job:
    """
    The run of Figure 4 or 6 that is looked at: PPO without a correction, with its own settings.

    :param task: a name of ``TASKS``
    :param seed: seed of the run
    :param steps: environment steps
    """
    return job_of(Cell("own", Task(TASKS[task][0], steps), None, "none"), seed, steps)


def train(job: Job, tell: Callable[[int], None]) -> tuple[BaseAlgorithm, Distances]:
    """
    Make a run, and look at each of its rollouts.

    :param job: the run
    :param tell: is called with the steps done so far
    :return: the trained model, and what was seen
    """
    check_job(job)
    made = JobManager(job, Path()).setup_experiment()
    assert made is not None
    model = made[0]
    callback = Distances(job.env, job.seed, max(1, job.steps // ROLLOUT), tell)
    model.learn(job.steps, callback=callback, log_interval=None)  # type: ignore[arg-type]
    return model, callback


def measure(*, seed: int, steps: int, tell: Callable[[int], None], task: str) -> dict[str, list[float]]:
    """
    One run of PPO: the distance averaged over its rollouts, and the diagnosis after the last.

    :param seed: seed of the run
    :param steps: environment steps
    :param tell: is called with the steps done so far
    :param task: a name of ``TASKS``
    :return: columns of one entry
    """
    callback = train(run_of(task, seed, steps), tell)[1]
    last = callback.history[-1]
    found = {"distance": [float(np.mean(callback.distances))], **{f"last_{name}": [last[name]] for name in MEASURES}}
    if last["gradient_angle_high"] >= 180.0:  # lost in the noise of one rollout, and no number to average
        found["last_gradient_angle"] = [float("nan")]
    return found


@dataclass(frozen=True)
class InitialDistances(Experiment):
    """How far initial states are from sampled ones, task by task."""

    name: str = "distances"
    where: str = "Table 1"
    purpose: str = "distance between initial and sampled states"

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(env for env, _ in TASKS.values())

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        steps = size.steps or (2_000_000 if size.full else 300_000)
        chosen = size.only({env: task for task, (env, _) in TASKS.items()}).values()
        return {
            task: [FunctionJob(f"{__name__}.measure", seed, steps, task, {"task": task}) for seed in range(seeds)]
            for task in chosen
        }

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        made = [
            {"task": task, "seed": found.job.seed, "run": found.job.name, "paper": TASKS[task][1]}
            | {name: values[0] for name, values in found.columns.items()}
            for task, results in results_of(plan, outcome).items()
            for found in results
        ]
        frame, kept = with_earlier(self.name, pd.DataFrame(made), plan, outcome)
        return self.findings(frame, kept, sizes(plan, frame, str))

    def findings(self, frame: pd.DataFrame, kept: pd.DataFrame, how_large: str) -> Findings:
        """
        What the figures say.

        :param frame: what was found, a row for each task and seed
        :param kept: the same with all other rows that the table is to keep
        :param how_large: seeds and steps of each task
        """
        tasks = list(dict.fromkeys(frame["task"]))

        def values(task: str, column: str = "distance") -> np.ndarray:
            return frame.loc[frame["task"] == task, column].to_numpy(dtype=float)

        claims = []
        for far in (task for task in FAR if task in tasks):
            for near in (task for task in NEAR if task in tasks):
                verdict, apart = judge("better than", values(far), values(near))  # that is, larger
                claims.append(Claim(f"distance of {far} above {near}'s", verdict, apart))
        rows = []
        for task in tasks:
            angles = values(task, "last_gradient_angle")
            known = angles[~np.isnan(angles)]
            figures = [interval(values(task, column)) for column in ("distance", "last_classifier_distance")]
            shown = [figure.text(3) for figure in (*figures, interval(values(task, "last_total_variation")))]
            angle = f"{interval(known).text(3)} (known in {len(known)})" if len(known) else "not known"
            rows.append([task, f"{TASKS[task][1]:.3f}", *shown, angle])
        heading = ["task", "paper", "distance", "by a classifier", "TV(d_γ, d)", "angle of the gradients in degrees"]
        note = (
            f"Table 1 of the paper (2M steps there). {how_large}. The runs are those of Figures 4 and 6: PPO without a "
            "correction, with the settings that the paper tuned for it on each task (`hyperparams/paper/ppo.yml`). The "
            f"distance is averaged over all rollouts (of {ROLLOUT} steps), the other figures are what `diagnose` finds on the "
            "last one; an angle is not known where it is lost in the noise of one rollout."
        )
        title = "Distance between initial and sampled states"
        section = Section(
            pictures=[Picture(f"{self.name}.png", title, _bars(frame))], claims=claims, tables=[Table(heading, rows)]
        )
        return Findings(self.name, title, [note], [section], {self.name: kept})


def _bars(frame: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    means = frame.groupby("task", sort=False)[["paper", "distance"]].mean()
    ends = [interval(part["distance"])[1:] for _, part in frame.groupby("task", sort=False)]
    errors = np.abs(np.array(ends).T - means["distance"].to_numpy())
    place = np.arange(len(means))
    axes.bar(place - 0.2, means["paper"], 0.38, color="#999999", label="paper, 2M steps")
    axes.bar(place + 0.2, means["distance"], 0.38, yerr=errors, color="#1f6fb4", label="here")
    axes.set_xticks(place, list(means.index), rotation=15)
    axes.set_ylabel("max-norm distance, initial vs sampled states")
    axes.legend()
    return figure
