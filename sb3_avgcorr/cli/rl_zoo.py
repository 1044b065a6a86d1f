"""RL Zoo's commands with our algorithms, environments and files known to them. Each takes the arguments after its name."""

import argparse
import importlib
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3.utils

from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.zoo.algorithms import UncorrectedPPO
from sb3_avgcorr.zoo.config import paper_config
from sb3_avgcorr.zoo.registry import register
from sb3_avgcorr.zoo.signals import StopSignals

#: where `train` writes, and so where the others look
FOLDER = "logs"


def _prepare(argv: list[str], *, for_training: bool = False) -> tuple[argparse.Namespace, list[str]]:
    """
    Look at the options that we check, or that have a default of ours; RL Zoo's parser sees all but --paper again.

    :param argv: arguments after the command
    :param for_training: whether the command is `train`, which takes --paper
    :return: these options, and the arguments for RL Zoo
    """
    register()
    # The same algorithm, which also knows the paper's schedule, and reads what SB3's own class has saved.
    rl_zoo3.utils.ALGOS["ppo"] = UncorrectedPPO

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algo", default="averaging_ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--gym-packages", nargs="+", default=[])
    if for_training:
        parser.add_argument("--paper", action="store_true")
        parser.add_argument("-conf", "--conf-file")
        parser.add_argument("-i", "--trained-agent")
    options, rest = parser.parse_known_args(argv)
    if options.algo not in rl_zoo3.utils.ALGOS:
        raise UserError(f"There is no algorithm {options.algo!r}; {nearest(options.algo, rl_zoo3.utils.ALGOS)}")
    module, colon, env_id = options.env.rpartition(":")
    for package in [*options.gym_packages, *([module] if colon else [])]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"The package {package!r}, which should register environments, cannot be imported: {error}"
            ) from error
    if env_id not in gym.registry:
        raise UserError(f"There is no environment {env_id!r}; {nearest(env_id, gym.registry)}")
    return options, ["--algo", options.algo, "--env", env_id, *rest]


def _given(argv: list[str], *names: str) -> bool:
    return any(argument == name or argument.startswith(f"{name}=") for argument in argv for name in names)


def _run(command: str, function: Callable[[], object], argv: list[str]) -> None:
    """
    :param command: name of the command
    :param function: RL Zoo's function, which reads the arguments of the process
    :param argv: the arguments it is to find there
    """
    before = sys.argv
    sys.argv = [f"sb3-avgcorr {command}", *argv]
    try:
        function()
    finally:
        sys.argv = before


def _complain(function: Callable[[], object]) -> Callable[[], object]:
    """RL Zoo's own complaints about a folder or a model that is not there, in one line."""

    def run() -> None:
        try:
            function()
        except (AssertionError, ValueError, FileNotFoundError) as error:
            raise UserError(" ".join(str(error).split())) from error

    return run


def train(argv: list[str]) -> int:
    """
    RL Zoo's train, and ``--paper`` for the paper's settings.

    :param argv: arguments after the command
    :return: exit code; as a shell has it, if a signal ended the run
    """
    import rl_zoo3.train

    options, rest = _prepare(argv, for_training=True)
    if options.trained_agent:
        if not (options.trained_agent.endswith(".zip") and os.path.isfile(options.trained_agent)):
            raise UserError(f"The trained agent {options.trained_agent!r} is not there; name the .zip file of a saved model.")
        rest += ["--trained-agent", options.trained_agent]
    if _given(argv, "-h", "--help"):
        print("Of ours: --paper, the paper's settings (hyperparams/paper); the default --algo is averaging_ppo. Of RL Zoo:")
    config = options.conf_file or (str(paper_config(options.algo)) if options.paper else None)
    if config is not None:
        rest += ["--conf-file", config]
    if not _given(rest, "--num-threads") and "OMP_NUM_THREADS" not in os.environ:
        # For networks of this size threads cost more than they gain, on a busy machine many times more.
        rest += ["--num-threads", "1"]
    StopSignals.last = None
    _run("train", rl_zoo3.train.train, rest)
    return 0 if StopSignals.last is None else 128 + StopSignals.last


def enjoy(argv: list[str]) -> None:
    """
    RL Zoo's enjoy; looks where `train` writes.

    :param argv: arguments after the command
    """
    import rl_zoo3.enjoy

    _, rest = _prepare(argv)
    if not _given(rest, "-f", "--folder"):
        rest += ["--folder", FOLDER]
    no_screen = sys.platform == "linux" and not any(
        os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    )
    if no_screen and not _given(rest, "--no-render"):
        print("No screen was found: not rendering. `sb3-avgcorr record-video` makes a video.")
        rest.append("--no-render")
    _run("enjoy", _complain(rl_zoo3.enjoy.enjoy), rest)


def record_video(argv: list[str]) -> None:
    """
    RL Zoo's record_video; looks where `train` writes.

    :param argv: arguments after the command
    """
    _, rest = _prepare(argv)
    if not _given(rest, "-f", "--folder"):
        rest += ["--folder", FOLDER]
    _run("record-video", _complain(lambda: runpy.run_module("rl_zoo3.record_video", run_name="__main__")), rest)


def push_to_hub(argv: list[str]) -> None:
    """
    RL Zoo's push_to_hub; looks where `train` writes.

    :param argv: arguments after the command
    """
    _, rest = _prepare(argv)
    if not _given(rest, "-f", "--folder"):
        rest += ["--folder", FOLDER]
    hub: Any = importlib.import_module("huggingface_sb3.push_to_hub")  # the package has a function of that name, too
    if not hasattr(hub, "generate_metadata"):
        # RL Zoo 2.9 asks for this name; sb3-team-hf-integration 3.2 has it as a private one, which gives an object for a dict.
        hub.generate_metadata = lambda *args: hub._generate_metadata(*args).to_dict()
    _run("push-to-hub", _complain(lambda: runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__")), rest)


def plot_train(argv: list[str]) -> None:
    """
    RL Zoo's plot_train. Ours: ``--save FILE``.

    :param argv: arguments after the command
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", "--algo", default="")
    parser.add_argument("-f", "--exp-folder", default=FOLDER)
    options, _ = parser.parse_known_args(argv)
    if not _given(argv, "-f", "--exp-folder"):
        argv = [*argv, "--exp-folder", FOLDER]
    _plot("plot-train", "plot_train", argv, Path(options.exp_folder, options.algo, "plot-train.png"))


def all_plots(argv: list[str]) -> None:
    """
    RL Zoo's all_plots. Ours: ``--save FILE``.

    :param argv: arguments after the command
    """
    _plot("all-plots", "all_plots", argv, Path("all-plots.png"))


def plot_from_file(argv: list[str]) -> None:
    """
    RL Zoo's plot_from_file. Ours: ``--save FILE``.

    :param argv: arguments after the command
    """
    _plot("plot-from-file", "plot_from_file", argv, Path("plot-from-file.png"))


def _plot(command: str, function: str, argv: list[str], default: Path) -> None:
    """
    :param command: name of the command
    :param function: RL Zoo's function
    :param argv: arguments after the command
    :param default: where the plots go when there is no screen to show them on
    """
    import matplotlib

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--save", type=Path)
    options, rest = parser.parse_known_args(argv)
    if _given(argv, "-h", "--help"):
        print(f"Of ours: --save FILE, write the plots to a file; without a screen the default is {default}. Of RL Zoo:")
    # Run folders are named with - in place of the / of an id such as avgcorr/TwoState-v0.
    rest = [a.replace("/", "-") if re.fullmatch(r"[\w.-]+/[\w.-]+-v\d+", a) else a for a in rest]
    if options.save is not None:
        matplotlib.use("Agg")
    try:
        importlib.import_module("rliable.library")
    except Exception as error:
        # RL Zoo does without it if it is missing, but not if it is there and broken (as its arch is under pandas 3).
        if not isinstance(error, ImportError):
            print(f"rliable cannot be used: {error}", file=sys.stderr)
        sys.modules["rliable"] = None  # type: ignore[assignment]
    import rl_zoo3.plots
    from matplotlib import pyplot as plt

    def save(*args: object, **kwargs: object) -> None:
        base = options.save or default
        for number in plt.get_fignums():
            path = base if len(plt.get_fignums()) == 1 else base.with_stem(f"{base.stem}-{number}")
            plt.figure(number).savefig(path)
            print(f"Saved {path}")
        plt.close("all")

    show = plt.show
    if matplotlib.get_backend().lower() == "agg":
        plt.show = save
    try:
        _run(command, _complain(getattr(rl_zoo3.plots, function)), rest)
    finally:
        plt.show = show
