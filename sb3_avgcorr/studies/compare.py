"""Does a correction help on a task? Variants of an algorithm with the same seeds, and what their returns allow to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.reporting.comparison import Comparison, analyse, nothing, write
from sb3_avgcorr.reporting.progress import Display
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import check_job, settings_of
from sb3_avgcorr.runs.results import Result
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.settings import Settings, family_of, variant
from sb3_avgcorr.zoo.config import paper_config

ALGOS = ("ppo", "power_ppo", "averaging_ppo")


def plan(
    env: str,
    algos: Sequence[str] = ALGOS,
    *,
    seeds: int = 10,
    steps: int | None = None,
    settings: Settings = "equal",
    paper: bool = False,
    hyperparams: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    eval_episodes: int = 0,
) -> dict[str, list[Job]]:
    """
    The runs of each variant. A UserError tells what makes no sense before anything is made.

    :param env: id of the environment
    :param algos: variants; the first is the baseline
    :param seeds: number of runs of each
    :param steps: environment steps of a run; default: as the hyperparameter file says
    :param settings: ``"equal"`` or ``"own"``
    :param paper: take the paper's settings
    :param hyperparams: hyperparameters to change for all variants
    :param env_kwargs: arguments of the environment
    :param eval_episodes: episodes of the final policy after training
    """
    if len(set(algos)) < len(algos):
        raise UserError(f"--algos has an algorithm twice: {' '.join(algos)}.")
    check_job(Job("averaging_ppo", env, 0, 1))  # the environment
    variants: dict[str, list[Job]] = {}
    for algo in algos:
        if paper:
            paper_config(algo)
        trained, changed = variant(algo, env, settings, paper=paper, hyperparams=hyperparams)

        def job(seed: int, steps: int, label: str = algo, trained: str = trained, changed: Any = changed) -> Job:
            return Job(
                trained,
                env,
                seed,
                steps,
                label,
                paper=paper,
                hyperparams=changed,
                env_kwargs=env_kwargs or {},
                eval_episodes=eval_episodes,
            )

        entry = settings_of(job(0, 1))
        if steps is None:
            steps = int(float(entry["n_timesteps"]))
        variants[algo] = [job(seed, steps) for seed in range(seeds)]
    families = {family_of(algo) for algo in algos}
    if settings == "equal" and len(families) > 1:
        raise UserError(
            f"--algos has algorithms of several families ({', '.join(sorted(families))}), which cannot have equal settings; "
            "take one family, or --settings own."
        )
    return variants


def compare(
    variants: Mapping[str, Sequence[Job]],
    out: Path | str,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    command: str = "",
    runs: Path | str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    progress: bool = True,
) -> Comparison:
    """
    Train, and leave ``curves.csv``, ``summary.csv`` (both as ``.parquet``, too), PNGs and ``report.html``.

    :param variants: the runs of each variant, all of the same number of steps; the first variant is the baseline
    :param out: where files go
    :param title: what is compared
    :param notes: what a reader should know
    :param command: the command that repeats it
    :param runs: where runs are kept; default: ``runs`` in ``out``
    :param workers: runs at the same time; default: one a core
    :param ray: address of a Ray cluster, ``""`` for one on this machine; None: processes
    :param progress: show how far it is
    :return: the tables
    """
    jobs = [job for group in variants.values() for job in group]
    steps = {job.steps for job in jobs}
    if len(steps) != 1:
        raise ValueError(f"variants have runs of {sorted(steps)} steps; all must have the same number")
    out = Path(out)
    outcome = run_jobs(
        jobs, out / "runs" if runs is None else runs, workers=workers, ray=ray, observer=Display() if progress else None
    )
    failed = dict(outcome.failed)
    results: dict[str, list[Result]] = {}
    for name, group in variants.items():
        for job in group:
            result = outcome.results.get(job)
            if isinstance(result, Result) and len(result.episodes) == 0:
                failed[job] = f"no episode ended within {job.steps} steps"
            elif isinstance(result, Result):
                results.setdefault(name, []).append(result)
    comparison = analyse(results, steps.pop(), title=title, notes=notes) if results else nothing(title, notes)
    comparison.failed = failed
    for name in variants:
        if name not in results:
            comparison.notes.append(f"{name} is missing: none of its runs succeeded.")
    for name, made in results.items():
        idle = sum(result.strongest == 0.0 for result in made if result.settings.get("correction_strength", "auto") == "auto")
        if idle:
            comparison.notes.append(
                f"{name} has corrected nothing in {idle} of {len(made)} runs: with correction_strength='auto' it found no "
                "bias worth a correction, and trained as without one. -params correction_strength:1 corrects in full."
            )
    if failed:
        again = "; the same command makes them again" if outcome.failed else ""
        comparison.notes.append(f"{len(failed)} of {len(jobs)} runs failed{again}.")
    if results:
        write(comparison, out, command)
    return comparison
