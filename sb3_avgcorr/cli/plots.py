"""``sb3-avgcorr plot-train``, ``all-plots`` and ``plot-from-file``: RL Zoo's, and ``--save FILE``."""

import re
import warnings
from pathlib import Path

import matplotlib
import rl_zoo3.plots
from matplotlib import pyplot as plt

from sb3_avgcorr.cli.arguments import FOLDER, Arguments, given, require, run
from sb3_avgcorr.errors import UserError


def plot_train(argv: list[str]) -> None:
    """
    Plot learning curves of training runs.

    :param argv: arguments after the command
    """
    parser = Arguments()
    parser.add_argument("-a", "--algo", default="")
    parser.add_argument("-f", "--exp-folder", default=FOLDER)
    parser.at_least(1, "-w", "--episode-window")
    parser.add_argument("-e", "--env", nargs="+")
    options, _ = parser.parse_known_args(argv)
    require("plot-train", options, argv, algo="-a averaging_ppo", env="-e CartPole-v1")
    argv = [*argv, "--exp-folder", options.exp_folder]
    _plot("plot-train", argv, Path(options.exp_folder, options.algo, "plot-train.png"))


def all_plots(argv: list[str]) -> None:
    """
    Plot evaluations of several runs, and store them.

    :param argv: arguments after the command
    """
    parser = Arguments()
    for names in (("-a", "--algos"), ("-e", "--env"), ("-f", "--exp-folders")):
        parser.add_argument(*names, nargs="+")
    options, _ = parser.parse_known_args(argv)
    require("all-plots", options, argv, algos="-a averaging_ppo ppo", env="-e CartPole-v1")
    _plot("all-plots", [*argv, "--exp-folders", *(options.exp_folders or [FOLDER])], Path("all-plots.png"))


def plot_from_file(argv: list[str]) -> None:
    """
    Plot what all-plots has stored, with rliable's statistics.

    :param argv: arguments after the command
    """
    parser = Arguments()
    parser.add_argument("-i", "--input")
    options, _ = parser.parse_known_args(argv)
    require("plot-from-file", options, argv, input="-i stored.pkl (what all-plots -o stored has written)")
    _plot("plot-from-file", argv, Path("plot-from-file.png"))


def _plot(command: str, argv: list[str], default: Path) -> None:
    """
    Run a function of RL Zoo that plots; save its figures if that is wished for, or if there is no screen to show them on.

    :param command: name of the command
    :param argv: arguments after the command
    :param default: where the plots go without a screen
    """
    parser = Arguments()
    parser.add_argument("--save", type=Path)
    options, rest = parser.parse_known_args(argv)
    if given(argv, "-h", "--help"):
        print(f"Of ours: --save FILE, write the plots to a file; without a screen the default is {default}. Of RL Zoo:")
    if options.save is not None:
        matplotlib.use("Agg")
    # Run folders are named with - in place of the / of an id such as avgcorr/TwoState-v0.
    rest = [a.replace("/", "-") if re.fullmatch(r"[\w.-]+/[\w.-]+-v\d+", a) else a for a in rest]
    before = set(plt.get_fignums())
    with warnings.catch_warnings():
        # Under Agg, which draws into files only, plt.show() does nothing and leaves the figures open.
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        run(command, getattr(rl_zoo3.plots, command.replace("-", "_")), rest, Exception)
    if matplotlib.get_backend().lower() == "agg" and (options.save is not None or not given(argv, "--no-display")):
        _save(set(plt.get_fignums()) - before, options.save or default, command)


def _save(numbers: set[int], base: Path, command: str) -> None:
    """Save open figures and close them."""
    try:
        figures = [plt.figure(number) for number in sorted(numbers)]
        if not any(axis.has_data() for figure in figures for axis in figure.axes):
            raise UserError(f"{command} found nothing to plot: no such runs, or none with enough episodes or evaluations.")
        for number, figure in enumerate(figures, start=1):
            path = base if len(figures) == 1 else base.with_stem(f"{base.stem}-{number}")
            try:
                figure.savefig(path)
            except (OSError, ValueError) as error:  # a folder that is not there, a format that is not known
                raise UserError(f"The plot cannot be saved as {str(path)!r}: {error}") from error
            print(f"Saved {path}")
    finally:
        for number in numbers:
            plt.close(number)
