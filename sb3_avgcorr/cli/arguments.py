"""What RL Zoo's commands have in common here: a look at the arguments before RL Zoo reads them, and errors in one line."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import rl_zoo3.utils
from rl_zoo3.utils import StoreDict

from sb3_avgcorr.errors import UserError, nearest, no_environment, one_line, user_error
from sb3_avgcorr.zoo.algorithms import UncorrectedPPO
from sb3_avgcorr.zoo.registry import register

#: where `train` writes, and so where the others look
FOLDER = "logs"


class KeyValue(StoreDict):
    """RL Zoo's ``key:value``, with an error that names the argument."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            if not all(value.partition(":")[0].isidentifier() and ":" in value for value in values):
                raise ValueError("a name, a colon and a value are wanted")
            super().__call__(parser, namespace, values, option_string)
        except Exception as error:  # values are Python expressions, which may fail in any way
            raise UserError(
                f"{' '.join(values)!r} ({option_string}) must be key:value, with a value as Python writes it, text in quotes "
                f"(policy:\"'MlpPolicy'\"): {one_line(error)}"
            ) from error


class Arguments(argparse.ArgumentParser):
    """
    A parser of the options that we check or that have a default of ours; RL Zoo's own parser sees all arguments afterwards.
    """

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> Any:
        """
        Raise a UserError, where argparse would print its usage, which here would be that of a few options.

        :param message: what is wrong
        """
        raise UserError(f"{message}.")

    def at_least(self, least: int, *names: str, also: tuple[int, ...] = ()) -> None:
        """
        Add an option that must be a whole number of some size.

        :param least: the least that makes sense
        :param names: names of the option, the long one last
        :param also: smaller numbers with a meaning of their own
        """

        def number(text: str) -> int:
            value = int(text)
            if value < least and value not in also:
                raise argparse.ArgumentTypeError(f"{value} makes no sense; it must be at least {least}")
            return value

        number.__name__ = "int"  # for argparse's own message
        self.add_argument(*names, type=number)


def agent_arguments() -> Arguments:
    """
    Make a parser of what every command that has an agent takes.

    :return: the parser
    """
    parser = Arguments()
    parser.add_argument("--algo", default="averaging_ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--gym-packages", nargs="+", default=[])
    parser.add_argument("--env-kwargs", nargs="+", action=KeyValue)
    parser.add_argument("--device")
    return parser


def prepare(parser: Arguments, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """
    Make our algorithms known to RL Zoo, and check the algorithm, the environment and the options of a parser.

    :param parser: made by :func:`agent_arguments`
    :param argv: arguments after the command
    :return: the parser's options, and the arguments for RL Zoo, in which the algorithm and the environment are always named
    """
    register()
    # The same algorithm, which also knows the paper's schedule, and reads what SB3's own class has saved.
    rl_zoo3.utils.ALGOS["ppo"] = UncorrectedPPO
    options, _ = parser.parse_known_args(argv)
    if options.algo not in rl_zoo3.utils.ALGOS:
        raise UserError(f"There is no algorithm {options.algo!r}; {nearest(options.algo, rl_zoo3.utils.ALGOS)}")
    module, colon, options.env = options.env.rpartition(":")
    for package in [*options.gym_packages, *([module] if colon else [])]:
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever the package does when it is imported
            raise UserError(
                f"The package {package!r}, which should register environments, cannot be imported: {one_line(error)}"
            ) from error
    if options.env not in gym.registry:
        raise UserError(no_environment(options.env, gym.registry))
    if options.device is not None:
        _check_device(options.device)
    # Of an option that is given twice the last one counts.
    return options, [*argv, "--algo", options.algo, "--env", options.env]


def _check_device(device: str) -> None:
    import torch as th

    try:
        if device != "auto":
            th.device(device)
    except RuntimeError as error:
        raise UserError(f"--device is {device!r}; it must be auto, cpu, cuda or another device of PyTorch.") from error


def require(command: str, options: argparse.Namespace, argv: list[str], **examples: str) -> None:
    """
    Raise a UserError if an option is missing that a command cannot do without.

    :param command: name of the command
    :param options: its options
    :param argv: its arguments, which may ask for help instead
    :param examples: the options that are needed, each with an example
    """
    for name, example in examples.items():
        if not getattr(options, name) and not given(argv, "-h", "--help"):
            raise UserError(f"{command} needs --{name}, for example: {example}")


def given(argv: list[str], *names: str) -> bool:
    """
    Tell whether an option is among the arguments.

    :param argv: the arguments
    :param names: names of the option
    :return: whether one of them is there, also as ``name=value``
    """
    return any(argument == name or argument.startswith(f"{name}=") for argument in argv for name in names)


def screen() -> bool:
    """
    Tell whether there is a screen to show something on.

    :return: False where a window cannot be opened for sure
    """
    return sys.platform != "linux" or any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


def run(
    command: str, function: Callable[[], object], argv: list[str], complaints: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """
    Run a function of RL Zoo; what it complains of (a folder or a model that is not there, say) becomes a UserError.

    :param command: name of the command
    :param function: RL Zoo's function, which reads the arguments of the process
    :param argv: the arguments it is to find there
    :param complaints: exceptions that tell of a mistake in the arguments
    """
    before = sys.argv
    sys.argv = [f"sb3-avgcorr {command}", *argv]
    try:
        function()
    except complaints as error:
        raise user_error(error) from error
    finally:
        sys.argv = before
