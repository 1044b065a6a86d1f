"""Results that were never trained, to judge by."""

from typing import Any

import numpy as np

from sb3_avgcorr.runs.jobs import AnyJob, Job
from sb3_avgcorr.runs.results import GAMMAS, Episodes, Result
from sb3_avgcorr.runs.runner import Outcome


def made_up(job: Job, level: float) -> Result:
    """A run of ten episodes, one a tenth of the steps, with returns around a level."""
    rng = np.random.default_rng([job.seed, int(abs(level))])
    step = np.linspace(job.steps / 10, job.steps, 10).astype(np.int64)
    returns = level + rng.normal(size=10)
    at = {gamma: returns * gamma for gamma in GAMMAS}
    episodes = Episodes(step, returns, 0.5 * returns, np.full(10, 5), at)
    return Result(job, 0.99, episodes, episodes, {}, "")


def outcome_of(plan: Any, level: dict[str, float], failing: str = "") -> Outcome:
    """What would have become of a plan if each variant earned its level."""
    jobs: list[AnyJob] = [job for group in plan.values() for job in group]
    done: dict[AnyJob, Any] = {job: made_up(job, level[job.label]) for job in jobs if job.label != failing}  # type: ignore
    return Outcome(done, {job: "Traceback\nValueError: no" for job in jobs if job.label == failing})
