"""``sb3-avgcorr compare``: does a correction help on a task?"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from sb3_avgcorr.cli.arguments import KeyValue
from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.settings import SETTINGS
from sb3_avgcorr.studies.compare import ALGOS, compare, plan
from sb3_avgcorr.zoo.config import make_folder

#: what is said when the user stops a command
STOPPED = "\nsb3-avgcorr: stopped. The same command goes on from here: finished runs are kept"


def parser() -> argparse.ArgumentParser:
    """
    The command's options.
    """
    made = argparse.ArgumentParser(
        prog="sb3-avgcorr compare",
        description="Train variants of an algorithm with the same seeds, and say which is better, if it can be said. "
        "A command that was stopped goes on where it was when it is given again.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--env", required=True, help="id of the environment (package:id imports the package first)")
    add("--algos", nargs="+", default=list(ALGOS), help=f"variants; the first is the baseline (default: {' '.join(ALGOS)})")
    add("--seeds", type=int, default=10, help="number of runs of each (default: 10)")
    add("-n", "--steps", type=int, help="environment steps of a run (default: as the hyperparameter file says)")
    add("--settings", choices=("equal", "own"), default="equal", help="; ".join(SETTINGS.values()))
    add("--paper", action="store_true", help="take the paper's settings")
    add("-params", "--hyperparams", nargs="+", action=KeyValue, help="hyperparameters to change for all (key:value)")
    add("--env-kwargs", nargs="+", action=KeyValue, help="arguments of the environment (key:value)")
    add("--eval-episodes", type=int, default=0, help="episodes of the final policy after training (default: 0)")
    add("--out", type=Path, help="where files go (default: compare-ENV)")
    add("--jobs", type=int, help="runs at a time (default: one a core)")
    add("--ray", nargs="?", const="", metavar="ADDRESS", help="run on a Ray cluster; alone: one on this machine")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param argv: arguments after the command
    :return: exit code; 1 if a run failed
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    for name, least in (("seeds", 1), ("steps", 1), ("jobs", 1), ("eval_episodes", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
    variants = plan(
        options.env,
        options.algos,
        seeds=options.seeds,
        steps=options.steps,
        settings=options.settings,
        paper=options.paper,
        hyperparams=options.hyperparams,
        env_kwargs=options.env_kwargs,
        eval_episodes=options.eval_episodes,
    )
    job = next(iter(variants.values()))[0]
    out = options.out or Path(f"compare-{re.sub(r'[^A-Za-z0-9._-]+', '_', job.env_id)}")
    make_folder(out, "--out")
    which = f"Settings: {SETTINGS[options.settings]}."
    if options.paper:
        which += " They are the paper's (--paper)."
    try:
        comparison = compare(
            variants,
            out,
            title=f"{job.env_id}: {', '.join(variants)}",
            notes=[which, f"{options.seeds} seeds, {job.steps} steps."],
            command=shlex.join(["sb3-avgcorr", "compare", *arguments]),
            workers=options.jobs,
            ray=options.ray,
        )
    except KeyboardInterrupt:
        print(f"{STOPPED}, begun ones go on from their last checkpoint.", file=sys.stderr)
        return 130
    print(comparison)
    for failed, why in comparison.failed.items():
        print(f"Failed: {failed.label}, seed {failed.seed}: {why}", file=sys.stderr)
    if comparison.files:
        print(f"\n{comparison.files['report.html']}")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
