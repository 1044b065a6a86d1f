"""The ``sb3-avgcorr`` command. What it runs is imported only when it is asked for."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sb3_avgcorr.errors import EXTRAS, UserError, nearest, user_error
from sb3_avgcorr.zoo.signals import StopSignals


@dataclass(frozen=True)
class Command:
    """
    A subcommand.

    :param module: file in this folder that holds it
    :param function: function that takes the arguments after the subcommand, and may return an exit code
    :param extra: the extra of our package that brings what it imports
    :param purpose: what it is for
    """

    module: str
    function: str
    extra: str
    purpose: str


COMMANDS: dict[str, Command] = {
    "train": Command("train", "train", "zoo", "train an agent, tune hyperparameters (-optimize), or go on (-i)"),
    "enjoy": Command("enjoy", "enjoy", "zoo", "watch or score a trained agent"),
    "plot-train": Command("plots", "plot_train", "zoo", "learning curves of training runs"),
    "all-plots": Command("plots", "all_plots", "zoo", "compare evaluations of several runs, and store them"),
    "plot-from-file": Command("plots", "plot_from_file", "zoo", "plots and rliable statistics of what all-plots stored"),
    "record-video": Command("enjoy", "record_video", "zoo", "a video of a trained agent"),
    "diagnose": Command("diagnose", "main", "experiments", "does my task suffer from the mismatch?"),
    "compare": Command("compare", "main", "experiments", "does a correction help on my task?"),
    "reproduce": Command("reproduce", "main", "experiments", "an experiment of the paper, and what becomes of its claim"),
    "push-to-hub": Command("hub", "push_to_hub", "zoo", "share a trained agent on the Hugging Face hub"),
}


def usage() -> str:
    """
    Describe the command.

    :return: its subcommands and options
    """
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: sb3-avgcorr COMMAND [options]",
            "",
            *(f"  {name:<{width}}  {command.purpose}" for name, command in COMMANDS.items()),
            "",
            "sb3-avgcorr COMMAND --help lists a command's options; sb3-avgcorr --version tells the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run a subcommand.

    :param argv: arguments after the program's name; None: those of the process
    :return: exit code: 2 for a mistake of the user, 1 for a run that failed, 128 and the number of a signal that ended it
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from sb3_avgcorr import __version__

        print(f"sb3-avgcorr {__version__}")
        return 0
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it, for --env my_module:MyTask-v0
    # Those who know RL Zoo may write plot_train.
    name = arguments[0].replace("_", "-")
    StopSignals.last = None
    try:
        if name not in COMMANDS:
            raise UserError(f"There is no command {arguments[0]!r}; {nearest(name, COMMANDS)}")
        return _run(COMMANDS[name], arguments[1:])
    except UserError as error:
        print(f"sb3-avgcorr: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("sb3-avgcorr: stopped" + (" before anything was learned." if name == "train" else "."), file=sys.stderr)
        return 130 if StopSignals.last is None else 128 + StopSignals.last


def _run(command: Command, arguments: list[str]) -> int:
    """Import a command and run it; what is not installed is named with the extra that brings it."""
    imported = False
    try:
        module = importlib.import_module(f"sb3_avgcorr.cli.{command.module}")
        function: Callable[[list[str]], int | None] = getattr(module, command.function)
        imported = True
        return function(arguments) or 0
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "sb3_avgcorr":
            raise
        # What is missing later on may be the need of an environment or of a user's own file, which no command's extra brings.
        of_command = not imported or EXTRAS.get(package) in ("contrib", "zoo", "experiments")
        raise user_error(error, command.extra if of_command else "") from error
