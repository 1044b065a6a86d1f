"""
Many runs on many machines: the same runs as Ray tasks, one CPU each, on this machine or on a cluster.

    python examples/ray_runs.py                      # a Ray cluster of this machine alone
    python examples/ray_runs.py 10.0.0.5:6379        # one that is running, whose nodes have this package

A run that was finished is never made again, and one that was killed goes on from its last checkpoint: give the same command
again. ``sb3-avgcorr compare --ray`` does the same and adds statistics and a page. Needs ``pip install "sb3-avgcorr[ray]"``.
"""

import sys

import numpy as np

from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.results import Result
from sb3_avgcorr.runs.runner import run_jobs


def main(ray: str | None = "", seeds: int = 2, steps: int = 10_000, folder: str = "ray-runs") -> dict[str, list[float]]:
    """
    Train PPO with and without a correction, and print how their episodes ended.

    :param ray: address of a cluster, ``""`` for one on this machine; None: processes without Ray
    :param seeds: runs of each variant
    :param steps: environment steps of a run
    :param folder: where runs are kept; on a cluster best on a disk that all nodes share
    :return: the mean return over the last ten episodes of each run, by variant
    """
    variants = {"without": None, "averaging": "averaging"}
    jobs = [
        Job("averaging_ppo", "CartPole-v1", seed, steps, label=name, hyperparams={"correction": correction})
        for name, correction in variants.items()
        for seed in range(seeds)
    ]
    outcome = run_jobs(jobs, folder, ray=ray)
    for job, why in outcome.failed.items():
        print(f"{job.title} failed: {why}")
    returns: dict[str, list[float]] = {name: [] for name in variants}
    for job, result in outcome.results.items():
        assert isinstance(result, Result)
        returns[job.label].append(float(result.episodes.returns[-10:].mean()))
    for name, values in returns.items():
        print(f"{name}: mean return of the last ten episodes {np.round(values, 1)}")
    return returns


if __name__ == "__main__":
    main(*sys.argv[1:2])
