"""``sb3-avgcorr enjoy`` and ``record-video``: RL Zoo's, which look where `train` writes, for a run that holds a model."""

import argparse
import os
import re
import runpy
from pathlib import Path

import rl_zoo3.enjoy

from sb3_avgcorr.cli.arguments import FOLDER, Arguments, agent_arguments, given, prepare, run, screen
from sb3_avgcorr.errors import UserError


def enjoy(argv: list[str]) -> None:
    """
    Watch or score a trained agent.

    :param argv: arguments after the command
    """
    rest = with_run(trained_agent_arguments(), argv)
    if not screen() and not given(rest, "--no-render"):
        print("No screen was found: not rendering. `sb3-avgcorr record-video` makes a video.")
        rest.append("--no-render")
    run("enjoy", rl_zoo3.enjoy.enjoy, rest, Exception)


def record_video(argv: list[str]) -> None:
    """
    Make a video of a trained agent.

    :param argv: arguments after the command
    """
    rest = with_run(trained_agent_arguments(), argv)
    if not screen():
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a window to draw in
    run("record-video", lambda: runpy.run_module("rl_zoo3.record_video", run_name="__main__"), rest, Exception)


def trained_agent_arguments() -> Arguments:
    """
    Make a parser of what every command that looks for a trained agent takes.

    :return: the parser
    """
    parser = agent_arguments()
    parser.add_argument("-f", "--folder", default=FOLDER)
    parser.add_argument("--load-best", action="store_true")
    parser.add_argument("--load-last-checkpoint", action="store_true")
    parser.at_least(0, "--load-checkpoint")
    parser.at_least(0, "--exp-id", also=(-1,))
    parser.at_least(1, "-n", "--n-timesteps")
    parser.at_least(1, "--n-envs")
    return parser


def with_run(parser: Arguments, argv: list[str]) -> list[str]:
    """
    Name the run to be loaded.

    :param parser: made by :func:`trained_agent_arguments`
    :param argv: arguments after the command
    :return: arguments for RL Zoo, with the folder and, unless the user says which, the latest run that holds a model
    """
    options, rest = prepare(parser, argv)
    rest += ["--folder", options.folder]
    if not options.exp_id and not given(argv, "-h", "--help"):
        rest += ["--exp-id", str(_latest_run(options))]
    return rest


def _latest_run(options: argparse.Namespace) -> int:
    """RL Zoo takes the run with the highest number, also if it failed and left nothing that could be loaded."""
    name = options.env.replace("/", "-")
    model = f"{name}.zip"
    if options.load_best:
        model = "best_model.zip"
    elif options.load_checkpoint is not None:
        model = f"rl_model_{options.load_checkpoint}_steps.zip"
    elif options.load_last_checkpoint:
        model = "rl_model_*_steps.zip"
    home = Path(options.folder, options.algo)
    runs = [
        int(match[1])
        for path in (home.iterdir() if home.is_dir() else ())
        if (match := re.fullmatch(re.escape(name) + r"_(\d+)", path.name)) and any(path.glob(model))
    ]
    if not runs:
        raise UserError(
            f"{str(home)!r} holds no run on {options.env} with a {model}. Train first (sb3-avgcorr train --algo "
            f"{options.algo} --env {options.env}), or name another folder (-f)."
        )
    return max(runs)
