"""The ``sb3-avgcorr`` command. What it runs is imported only when it is asked for."""

import importlib
import sys
from collections.abc import Callable, Sequence

from sb3_avgcorr.errors import UserError, nearest

#: subcommand -> (module, function that takes the arguments after the subcommand, what it is for)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("sb3_avgcorr.cli.rl_zoo", "train", "train an agent, tune hyperparameters (-optimize), or go on (-i)"),
    "enjoy": ("sb3_avgcorr.cli.rl_zoo", "enjoy", "watch or score a trained agent"),
    "plot-train": ("sb3_avgcorr.cli.rl_zoo", "plot_train", "learning curves of training runs"),
    "all-plots": ("sb3_avgcorr.cli.rl_zoo", "all_plots", "compare evaluations of several runs, and store them"),
    "plot-from-file": ("sb3_avgcorr.cli.rl_zoo", "plot_from_file", "plots and rliable statistics of what all-plots stored"),
    "record-video": ("sb3_avgcorr.cli.rl_zoo", "record_video", "a video of a trained agent"),
    "diagnose": ("sb3_avgcorr.cli.diagnose", "main", "does my task suffer from the mismatch?"),
    "compare": ("sb3_avgcorr.cli.compare", "main", "does a correction help on my task?"),
    "reproduce": ("sb3_avgcorr.cli.reproduce", "main", "an experiment of the paper, and what becomes of its claim"),
    "push-to-hub": ("sb3_avgcorr.cli.rl_zoo", "push_to_hub", "share a trained agent on the Hugging Face hub"),
}

NEEDS_EXTRA = "pip install 'sb3-avgcorr[zoo]'"


def usage() -> str:
    """
    :return: what the command can do
    """
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {purpose}" for name, (_, _, purpose) in COMMANDS.items()]
    return "\n".join(
        ["usage: sb3-avgcorr COMMAND [options]", "", *lines, "", "sb3-avgcorr COMMAND --help lists a command's options."]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments after the program's name; None: those of the process
    :return: exit code
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    # Those who know RL Zoo may write plot_train.
    name = arguments[0].replace("_", "-")
    try:
        if name not in COMMANDS:
            raise UserError(f"There is no command {arguments[0]!r}; {nearest(name, COMMANDS)}")
        module, function, _ = COMMANDS[name]
        try:
            command: Callable[[list[str]], int | None] = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "sb3_avgcorr":
                raise
            raise UserError(f"This needs {missing}, which is not installed: {NEEDS_EXTRA}") from error
        return command(arguments[1:]) or 0
    except UserError as error:
        print(f"sb3-avgcorr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sb3-avgcorr: stopped before anything was learned.", file=sys.stderr)
        return 130
