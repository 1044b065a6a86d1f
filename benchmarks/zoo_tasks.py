"""
What training takes and brings with our settings, task by task: the table of docs/zoo.md.

    python benchmarks/zoo_tasks.py --runs runs/zoo_tasks

trains ``averaging_ppo`` on every task with the settings of hyperparams/averaging_ppo.yml, for the file's step budget or
--at-most steps, and prints the table. Runs are resumed and never made twice.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import settings_of
from sb3_avgcorr.runs.results import Result, read_result
from sb3_avgcorr.runs.run import run_job

TASKS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "avgcorr/TwoState-v0",
    "avgcorr/DotReacher-v0",
    "avgcorr/LongTail-v0",
    "avgcorr/LongTailContinuous-v0",
    "avgcorr/LongTailReacher-v0",
    "avgcorr/Ring-v0",
    "avgcorr/Carousel-v0",
    "avgcorr/UR5Reacher-v0",
    "avgcorr/PointMassEasy-v0",
    "avgcorr/SparseReacherEasy-v0",
    "avgcorr/SparseReacherHard-v0",
    *(f"{name}-v5" for name in ("HalfCheetah", "Ant", "Walker2d", "Swimmer", "Hopper", "InvertedDoublePendulum", "Reacher")),
]


def train(job: Job, folder: Path) -> None:
    """
    Train, and note how many minutes of processor time it took.

    :param job: the run
    :param folder: where runs are
    """
    if read_result(job, folder) is None:
        start = time.process_time()
        run_job(job, folder)
        (folder / job.name / "minutes.json").write_text(json.dumps((time.process_time() - start) / 60))


def row(jobs: list[Job], folder: Path) -> str:
    """
    A line of the table: the first and the last tenth of training.

    :param jobs: the runs of a task
    :param folder: where runs are
    """
    budget = int(settings_of(jobs[0])["n_timesteps"])
    steps = jobs[0].steps
    minutes, first, last = [], [], []
    for job in jobs:
        result = read_result(job, folder)
        assert isinstance(result, Result)
        minutes.append(json.loads((folder / job.name / "minutes.json").read_text()))
        returns, when = result.episodes.returns, result.episodes.step
        if len(returns):
            first.append(returns[when <= max(0.1 * steps, when[0])].mean())
            last.append(returns[when >= min(0.9 * steps, when[-1])].mean())
    ends = ["no episode ended" if not x else ", ".join(f"{value:.4g}" for value in x) for x in (first, last)]
    length = f"{steps:,}" if steps == budget else f"{steps:,} of {budget:,}"
    command = f"`sb3-avgcorr train --env {jobs[0].env} -P" + ("`" if steps == budget else f" -n {steps}`")
    return f"| {command} | {length} | {np.mean(minutes):.1f} | {ends[0]} | {ends[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo_tasks"))
    parser.add_argument("--at-most", type=int, default=50_000, help="steps of a run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--table-only", action="store_true", help="run nothing, print the table of what is there")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    by_task = {}
    for env in args.tasks:
        budget = int(settings_of(Job("averaging_ppo", env, 0, 1))["n_timesteps"])
        by_task[env] = [Job("averaging_ppo", env, seed, min(budget, args.at_most)) for seed in range(args.seeds)]
    if not args.table_only:
        with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            for future in [pool.submit(train, job, args.runs) for jobs in by_task.values() for job in jobs]:
                future.result()
    print("| command | steps | minutes | return at the beginning, by seed | return at the end, by seed |")
    print("|---|---|---|---|---|")
    for jobs in by_task.values():
        if all(read_result(job, args.runs) is not None for job in jobs):
            print(row(jobs, args.runs))


if __name__ == "__main__":
    main()
