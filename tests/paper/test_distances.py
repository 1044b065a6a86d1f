"""Table 1 of the paper: the distance between initial and sampled states, along the runs of its figures."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sb3_avgcorr.paper.distances import TASKS, InitialDistances, measure, run_of, train
from sb3_avgcorr.paper.training import STUDIES, plan
from sb3_avgcorr.runs import training
from sb3_avgcorr.runs.jobs import FunctionJob
from sb3_avgcorr.runs.results import Columns
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.runs.training import parameters_digest
from sb3_avgcorr.studies.experiment import Size


def ignore(steps: int) -> None:
    """Nobody is told."""


@pytest.mark.parametrize("task", TASKS)
def test_the_runs_are_those_of_the_figures(task: str) -> None:
    studies = [STUDIES[name] for name in ("mujoco", "mountaincar-pointmass")]
    names = {job.name for study in studies for jobs in plan(study, full=False, steps=8000).values() for job in jobs}
    assert run_of(task, 1, 8000).name in names


def test_looking_changes_nothing_of_the_run(tmp_path: Path) -> None:
    job = run_of("MountainCarContinuous", 0, 8000)
    model, seen = train(job, ignore)
    assert len(seen.distances) == 2
    assert [row["timesteps"] for row in seen.history] == [8000]  # the diagnosis is of the last rollout alone
    assert parameters_digest(model) == training.train(job, tmp_path, lambda line: None)["parameters"]


def test_the_distance_is_that_of_histograms() -> None:
    """One rollout, whose states and initial states are drawn into bins by numpy's own histogram."""
    model, seen = train(run_of("MountainCarContinuous", 0, 4000), ignore)
    space = model.observation_space
    limits = list(zip(space.low, space.high, strict=True))  # type: ignore[attr-defined]

    def shares(observations: np.ndarray) -> np.ndarray:
        return np.histogramdd(observations, bins=8, range=limits)[0] / len(observations)

    sampled = model.rollout_buffer.observations.reshape(-1, 2)  # type: ignore[attr-defined]
    starts = np.zeros((5000, 2))
    starts[:, 0] = np.random.default_rng(0).uniform(-0.6, -0.4, 5000)  # as the task draws them
    expected = np.abs(shares(sampled) - shares(starts)).max()
    assert seen.distances[0] == pytest.approx(expected, abs=0.03)  # other draws of initial states


def test_figures_are_kept_by_run_and_judged() -> None:
    size = Size(seeds=2, envs=("Ant-v4", "Swimmer-v4"))
    experiment = InitialDistances()
    planned = experiment.plan(size)
    columns = (
        "distance",
        "last_classifier_distance",
        "last_total_variation",
        "last_explained_variance",
        "last_gradient_angle",
    )
    level = {"Ant": 0.1, "Swimmer": 0.3}
    results = {}
    for task, jobs in planned.items():
        for job in jobs:
            assert isinstance(job, FunctionJob)
            assert job.function == f"{measure.__module__}.{measure.__name__}"
            results[job] = Columns(job, {name: [level[task] + 0.001 * job.seed] for name in columns})
    found = experiment.judge(size, planned, Outcome(results))
    (claim,) = found.claims
    assert (claim.text, claim.verdict) == ("distance of Swimmer above Ant's", "supported")
    table = found.data["distances"]
    assert set(table["run"]) == {job.name for jobs in planned.values() for job in jobs}
    again = experiment.judge(size, planned, Outcome({}, earlier={"distances": table}))
    pd.testing.assert_frame_equal(again.data["distances"], table)
    assert again.report == found.report
