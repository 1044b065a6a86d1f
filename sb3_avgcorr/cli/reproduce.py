"""``sb3-avgcorr reproduce``: every experiment of the paper by its name, and what it says of the paper's claims."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.zoo.config import make_folder


@dataclass(frozen=True)
class Experiment:
    """
    :param where: where the paper has it
    :param purpose: what it shows, in a few words
    :param run: takes the command's options, does it, and returns ``claims``, ``report`` and (training runs) ``failed``
    :param envs: ids of the tasks that ``--envs`` may choose from; none: it has no choice
    """

    where: str
    purpose: str
    run: Callable[[argparse.Namespace], dict[str, Any]]
    envs: Callable[[], set[str]] = set


def _module(module: str, quick: dict[str, Any], full: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """A small experiment with a module of its own, whose ``run`` knows its size."""
    run = importlib.import_module(f"sb3_avgcorr.paper.{module}").run
    size = dict(full if options.full else quick)
    taken = {"seeds", "steps", "runs"} & inspect.signature(run).parameters.keys()
    size.update({name: getattr(options, name) for name in taken if getattr(options, name) is not None})
    result: dict[str, Any] = run(options.out, **size)
    words = {True: "supported", False: "contradicted", None: "cannot tell"}
    for claim in result["claims"]:
        claim["verdict"] = words[claim["holds"]]
    result["claims"] = [claim for claim in result["claims"] if claim["decides"]]
    return result


def _how(options: argparse.Namespace) -> dict[str, Any]:
    """The command's options as training runs take them."""
    taken = ("full", "seeds", "steps", "runs", "ray", "envs")
    return {"workers": options.jobs, **{name: getattr(options, name) for name in taken}}


def _study(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Training runs of several variants."""
    from sb3_avgcorr.paper.claims import run_study
    from sb3_avgcorr.paper.training import STUDIES

    return run_study(name, STUDIES[name], options.out, **_how(options))


def _study_envs(name: str) -> set[str]:
    from sb3_avgcorr.paper.training import STUDIES

    return {task.env for task in STUDIES[name].tasks}


def _long_tail_envs() -> set[str]:
    from sb3_avgcorr.studies.long_tail import TASKS

    return set(TASKS)


def _long_tail(options: argparse.Namespace) -> dict[str, Any]:
    from sb3_avgcorr.studies.long_tail import run

    return run(options.out, **_how(options))


def _own_module(module: str, where: str, purpose: str, quick: dict[str, Any], full: dict[str, Any]) -> Experiment:
    return Experiment(where, purpose, partial(_module, module, quick, full))


def _training(name: str, where: str, purpose: str) -> Experiment:
    return Experiment(where, purpose, partial(_study, name), partial(_study_envs, name))


EXPERIMENTS: dict[str, Experiment] = {
    "counterexample": _own_module(
        "counterexample",
        "Fig. 1, App. D",
        "two states only a correction tells apart",
        {"seeds": 3, "steps": 40_000},
        {},
    ),
    "bias": _own_module("bias", "Fig. 2", "bias and variance of the state emphasis", {"steps": 20_000}, {"seeds": 10}),
    "bias-ratio": _own_module(
        "bias_ratio", "App. E", "bias left by the learned correction", {"seeds": 3, "steps": 10_000}, {"seeds": 10}
    ),
    "dotreacher": _own_module(
        "dot_reacher_returns", "App. E", "returns on the discrete reacher", {"seeds": 3, "steps": 10_000}, {"seeds": 10}
    ),
    "classic-control": _training("classic-control", "Fig. 3", "batch actor-critic on three classic tasks"),
    "mujoco": _training("mujoco", "Fig. 4", "PPO on four MuJoCo tasks"),
    "ur5": _training("ur5", "Fig. 5", "PPO on the UR5 arm (simulated)"),
    "mountaincar-pointmass": _training("mountaincar-pointmass", "Fig. 6", "PPO where the mismatch is said to be large"),
    "distances": _own_module(
        "distances", "Table 1", "distance between initial and sampled states", {}, {"seeds": 10, "steps": 2_000_000}
    ),
    "hyperparameter-transfer": _training("hyperparameter-transfer", "App. G.1", "three settings carried over to other tasks"),
    "dm-reacher": _training("dm-reacher", "App. G.2", "PPO on dm_control's reacher, sparse rewards"),
    "discounted": _training("discounted", "App. H", "the same with discounted returns"),
    "long-tail": Experiment(
        "ours", "tasks where the correction changes the goal, equal settings", _long_tail, _long_tail_envs
    ),
}


def listing() -> str:
    """
    :return: the experiments, a line each
    """
    width = max(map(len, EXPERIMENTS))
    return "\n".join(f"{name:<{width}}  {e.where:<14}  {e.purpose}" for name, e in EXPERIMENTS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments after the command
    :return: exit code; 1 if a training run failed
    """
    parser = argparse.ArgumentParser(
        prog="sb3-avgcorr reproduce",
        description="Run an experiment of the paper, and say what becomes of the paper's claim.",
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="an experiment, or all")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--full", action="store_true", help="the paper's size; default: a size for minutes on 2 cores")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--steps", type=int, help="environment steps of a run")
    parser.add_argument("--envs", nargs="+", metavar="ID", help="only these tasks of an experiment that trains on several")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where reports go (default: results)")
    parser.add_argument("--runs", type=Path, help="where runs are kept, which are never made twice (default: OUT/runs)")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one a core)")
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="run on a Ray cluster; alone: on this machine")
    options = parser.parse_args(argv)
    for name in ("seeds", "steps", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1.")
    if options.list or options.name is None:
        print(listing())
        return 0 if options.list else 2
    if options.name != "all" and options.name not in EXPERIMENTS:
        raise UserError(f"There is no experiment {options.name!r}; {nearest(options.name, [*EXPERIMENTS, 'all'])}")
    names = list(EXPERIMENTS) if options.name == "all" else [options.name]
    if options.envs:
        known = {name: EXPERIMENTS[name].envs() for name in names}
        for env in options.envs:
            if not any(env in envs for envs in known.values()):
                among = set().union(*known.values())
                hint = nearest(env, among) if among else "it has no choice of tasks."
                raise UserError(f"{env!r} (--envs) is not a task of {options.name}; {hint}")
        names = [name for name in names if known[name] & set(options.envs)]
    make_folder(options.out, "--out")
    try:
        return max(_reproduce(name, options) for name in names)
    except KeyboardInterrupt:
        print("\nsb3-avgcorr: stopped. The same command goes on from here.", file=sys.stderr)
        return 130


def _reproduce(name: str, options: argparse.Namespace) -> int:
    """
    :param name: an experiment
    :param options: of the command
    :return: exit code
    """
    if not options.full:
        where = EXPERIMENTS[name].where
        full = "10 seeds" if where == "ours" else f"the paper's size ({where})"
        print(f"{name}: a small version; --full for {full}.", flush=True)
    if options.envs:
        options = argparse.Namespace(**{**vars(options), "envs": [e for e in options.envs if e in EXPERIMENTS[name].envs()]})
    result = EXPERIMENTS[name].run(options)
    print(result["report"])
    for claim in result["claims"]:
        place = ", ".join(claim[key] for key in ("settings", "task") if key in claim)
        print(f"{claim['verdict']:>12}: {claim['claim']}" + (f" [{place}]" if place else ""))
    if result.get("failed"):
        print(f"{len(result['failed'])} run(s) failed; the same command makes them again.")
        return 1
    return 0
