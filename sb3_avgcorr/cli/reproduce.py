"""``sb3-avgcorr reproduce``: every experiment by its name, and what it says of the paper's claims and our own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sb3_avgcorr.cli.compare import STOPPED
from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.paper.bias import Bias
from sb3_avgcorr.paper.bias_ratio import BiasRatio
from sb3_avgcorr.paper.counterexample import Counterexample
from sb3_avgcorr.paper.distances import InitialDistances
from sb3_avgcorr.paper.dot_reacher_returns import DotReacherReturns
from sb3_avgcorr.paper.study import TrainingStudy
from sb3_avgcorr.paper.training import STUDIES
from sb3_avgcorr.reporting.claims import in_words, verdicts_on
from sb3_avgcorr.reporting.figures import thousands
from sb3_avgcorr.reporting.progress import Display
from sb3_avgcorr.studies.benchmark import BOX2D_SB3, MUJOCO_SB3
from sb3_avgcorr.studies.experiment import Experiment, Size, conduct
from sb3_avgcorr.studies.head_only import HEAD_ONLY
from sb3_avgcorr.studies.long_tail import LongTail
from sb3_avgcorr.studies.ring import Ring
from sb3_avgcorr.studies.safety import SAFETY
from sb3_avgcorr.zoo.config import make_folder

#: where a checkout keeps the pages of its results
PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"


def _study(name: str, where: str, purpose: str) -> TrainingStudy:
    return TrainingStudy(name, where, purpose, STUDIES[name])


_ALL: tuple[Experiment, ...] = (
    Counterexample(),
    Bias(),
    BiasRatio(),
    DotReacherReturns(),
    _study("classic-control", "Fig. 3", "batch actor-critic on three classic tasks"),
    _study("mujoco", "Fig. 4", "PPO on four MuJoCo tasks"),
    _study("ur5", "Fig. 5", "PPO on the UR5 arm (simulated)"),
    _study("mountaincar-pointmass", "Fig. 6", "PPO where the mismatch is said to be large"),
    InitialDistances(),
    _study("hyperparameter-transfer", "App. G.1", "three settings carried over to other tasks"),
    _study("dm-reacher", "App. G.2", "PPO on dm_control's reacher, sparse rewards"),
    _study("discounted", "App. H", "the same with discounted returns"),
    LongTail(),
    Ring(),
    SAFETY,
    MUJOCO_SB3,
    BOX2D_SB3,
    HEAD_ONLY,
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def listing(*folders: Path) -> str:
    """
    The experiments, a line each, with the verdicts of their last pages.

    :param folders: where pages may be; the first that has one counts
    """
    name_width = max(map(len, EXPERIMENTS))
    purpose_width = max(len(experiment.purpose) for experiment in EXPERIMENTS.values())
    lines = []
    for name, experiment in EXPERIMENTS.items():
        page = next((path for folder in folders if (path := folder / f"{name}.md").is_file()), None)
        found = "" if page is None else in_words(verdicts_on(page.read_text(encoding="utf-8")))
        line = f"{name:<{name_width}}  {experiment.where:<14}  {experiment.purpose:<{purpose_width}}  {found}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """
    The command's options.
    """
    made = argparse.ArgumentParser(
        prog="sb3-avgcorr reproduce",
        description="Run an experiment of the paper or of ours, and say what becomes of its claims. "
        "A command that was stopped goes on when it is given again: finished runs are kept, and those of training need not "
        "even be there if their figures are in the tables of --out.",
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("name", nargs="?", help="an experiment, or all")
    made.add_argument("--list", action="store_true", help="list the experiments, with the verdicts found last")
    made.add_argument("--full", action="store_true", help="the full size: the paper's, or ten seeds")
    made.add_argument("--seeds", type=int, help="number of seeds")
    made.add_argument("--steps", type=int, help="environment steps of a run")
    made.add_argument("--envs", nargs="+", metavar="ID", help="only these tasks of an experiment that has several")
    made.add_argument("--out", type=Path, default=Path("results"), help="where reports go (default: results)")
    made.add_argument("--runs", type=Path, help="where runs are kept, which are never made twice (default: OUT/runs)")
    made.add_argument("--jobs", type=int, help="runs at a time (default: one a core)")
    made.add_argument("--so-far", action="store_true", help="make no runs: the page and the tables of those that there are")
    made.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="run on a Ray cluster; alone: on this machine")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param argv: arguments after the command
    :return: exit code; 1 if a run failed
    """
    options = parser().parse_args(argv)
    for name in ("seeds", "steps", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1.")
    if options.list or options.name is None:
        print(listing(options.out, PAGES))
        return 0 if options.list else 2
    if options.name != "all" and options.name not in EXPERIMENTS:
        raise UserError(f"There is no experiment {options.name!r}; {nearest(options.name, [*EXPERIMENTS, 'all'])}")
    names = list(EXPERIMENTS) if options.name == "all" else [options.name]
    size = Size(options.full, options.seeds, options.steps, tuple(options.envs or ()))
    if size.envs:
        names = _with_tasks(names, size.envs, options.name)
    make_folder(options.out, "--out")
    try:
        return max(_attempt(EXPERIMENTS[name], size, options, several=options.name == "all") for name in names)
    except KeyboardInterrupt:
        print(f"{STOPPED}; training goes on from its last checkpoint, other runs begin again.", file=sys.stderr)
        return 130


def _with_tasks(names: Sequence[str], envs: Sequence[str], asked: str) -> list[str]:
    """Those experiments that have one of the tasks; a UserError names a task that none has."""
    known = {name: set(EXPERIMENTS[name].envs) for name in names}
    for env in envs:
        if not any(env in tasks for tasks in known.values()):
            among = set().union(*known.values())
            hint = nearest(env, among) if among else "it has no choice of tasks."
            raise UserError(f"{env!r} (--envs) is not a task of {asked}; {hint}")
    return [name for name in names if known[name] & set(envs)]


def _attempt(experiment: Experiment, size: Size, options: argparse.Namespace, several: bool) -> int:
    """Run one experiment; of several, one that has no runs yet does not keep the others from being shown so far."""
    try:
        return _reproduce(experiment, size, options)
    except UserError as error:
        if not (several and options.so_far):
            raise
        print(error)
        return 0


def _reproduce(experiment: Experiment, size: Size, options: argparse.Namespace) -> int:
    """Run one experiment, and say what it found."""
    size = replace(size, envs=tuple(env for env in size.envs if env in experiment.envs))
    if not (size.full or options.so_far):
        jobs = {job.name: job for group in experiment.plan(size).values() for job in group}.values()
        full = "the full size" if experiment.where == "ours" else f"the paper's size ({experiment.where})"
        print(
            f"{experiment.name}: {len(jobs)} runs, {thousands(sum(job.steps for job in jobs))} steps in all; "
            f"--full for {full}, --seeds and --steps for a size of your own.",
            flush=True,
        )
    findings = conduct(
        experiment,
        size,
        options.out,
        runs=options.runs,
        workers=options.jobs,
        ray=options.ray,
        observer=Display(),
        so_far=options.so_far,
    )
    print(findings.report)
    for claim in findings.claims:
        print(f"{claim.verdict:>12}: {claim.text}" + (f" [{claim.place}]" if claim.place else ""))
    if findings.failed:
        print(f"{len(findings.failed)} run(s) failed; the same command makes them again.")
        return 1
    return 0
