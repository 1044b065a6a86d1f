"""
The paper's training experiments as lists of runs, and what it claims of them.

Every study is made twice: each variant with the settings the paper tuned for it ("own"), as the paper has it, and all
variants with the settings of the averaging one ("equal"), which is the fair test of the correction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from sb3_avgcorr.reporting.claims import Relation
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.results import GAMMAS
from sb3_avgcorr.runs.settings import Settings, variant
from sb3_avgcorr.zoo.config import paper_config, read_yaml

COMPARISONS: tuple[Settings, ...] = ("own", "equal")
#: what the names of each variant's algorithms begin with, in the order of tables and plots
VARIANTS = {"none": "", "power": "power_", "averaging": "averaging_"}


@dataclass(frozen=True)
class Task:
    """
    What is trained on.

    :param env: id of the environment
    :param steps: environment steps of a run; that of the paper's size has what its file says
    :param family: ``"ppo"`` or ``"bac"``
    :param seeds: number of runs
    :param full_seeds: seeds of the paper
    :param open_ended: whether an episode may last for the rest of the run, so that the one that is open at its end counts
    """

    env: str
    steps: int
    family: str = "ppo"
    seeds: int = 3
    full_seeds: int = 10
    open_ended: bool = False


@dataclass(frozen=True)
class Expectation:
    """
    What the paper says of two variants.

    :param text: in our words
    :param first: a variant
    :param is_: what it is to the second, by the mean return over training (``"area"``) or at its end (``"final"``)
    :param second: another variant
    :param measure: ``"area"`` or ``"final"``
    :param envs: where; none: on every task of the study
    :param family: with which algorithm; empty: with any
    :param gammas: with which discount factors of the returns; none: with all of the study
    """

    text: str
    first: str
    is_: Relation
    second: str
    measure: Literal["area", "final"] = "area"
    envs: tuple[str, ...] = ()
    family: str = ""
    gammas: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """
    A training experiment of the paper.

    :param title: heading of its page
    :param figure: where the paper has it
    :param tasks: what is trained
    :param expectations: what the paper says of it
    :param gammas: discount factors of the returns; none: returns are undiscounted
    :param note: what a reader should know
    :param borrowed: other tasks, whose settings are used in place of the task's own; the best of them, by the mean return
        over training, counts for a variant
    """

    title: str
    figure: str
    tasks: tuple[Task, ...]
    expectations: tuple[Expectation, ...]
    gammas: tuple[float, ...] = ()
    note: str = ""
    borrowed: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Of a learning curve."""
        return 20 if self.gammas else 40  # there is one curve for each γ

    @property
    def what(self) -> str:
        """Name of the returns in tables."""
        return "discounted" if self.gammas else "return"


@dataclass(frozen=True)
class Cell:
    """One place of a study: the runs of a variant that differ by their seed alone."""

    settings: Settings
    task: Task
    gamma: float | None  # of the returns; the runs are the same for all
    variant: str
    settings_of: str = ""  # the task they were tuned for, if not this one


def job_of(cell: Cell, seed: int, steps: int) -> Job:
    """
    One run of a cell.

    :param cell: the cell
    :param seed: the seed
    :param steps: environment steps
    """
    family = cell.task.family
    name = VARIANTS[cell.variant] + family
    hyperparams: dict[str, Any] = {}
    if cell.settings_of:
        tuned_for = name if cell.settings == "own" else f"averaging_{family}"
        # What counts as the end of an episode belongs to the task, not to the settings.
        tuned = _entry(tuned_for, cell.settings_of)
        hyperparams = {k: v for k, v in tuned.items() if k not in ("n_timesteps", "env_wrapper")}
    algo, hyperparams = variant(name, cell.task.env, cell.settings, paper=True, hyperparams=hyperparams)
    return Job(algo, cell.task.env, seed, steps, label=cell.variant, paper=True, hyperparams=hyperparams)


def _entry(algo: str, env: str) -> dict[str, Any]:
    """The paper's settings."""
    return read_yaml(paper_config(algo))[env]


def cells_of(study: Study) -> list[Cell]:
    """
    All places of a study.

    :param study: the study
    """
    return [
        Cell(settings, task, gamma, variant, settings_of)
        for settings in COMPARISONS
        for task in study.tasks
        for gamma in study.gammas or (None,)
        for settings_of in study.borrowed or ("",)
        for variant in VARIANTS
    ]


def plan(study: Study, *, full: bool, seeds: int | None = None, steps: int | None = None) -> dict[Cell, list[Job]]:
    """
    The runs of every cell.

    :param study: the study
    :param full: the paper's size
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps, if not the size's own
    """
    planned = {}
    for cell in cells_of(study):
        length = steps or cell.task.steps
        if full and steps is None:
            length = int(_entry(f"averaging_{cell.task.family}", cell.task.env)["n_timesteps"])
        first = job_of(cell, 0, length)
        count = seeds or (cell.task.full_seeds if full else cell.task.seeds)
        planned[cell] = [replace(first, seed=seed) for seed in range(count)]
    return planned


_CLASSIC = tuple(Task(env, 200_000, "bac", seeds=5) for env in ("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"))
_MUJOCO = (
    Task("HalfCheetah-v4", 2_000_000, seeds=5),
    *(Task(f"{name}-v4", 300_000, seeds=5) for name in ("Ant", "Walker2d", "Swimmer")),
)
_MUJOCO_IDS = tuple(task.env for task in _MUJOCO)
_MOUNTAIN_CAR = Task("MountainCarContinuous-v0", 60_000, seeds=10)
_CAR = ("MountainCarContinuous-v0",)
_DOMINATES = ("CartPole-v1", *_CAR)

STUDIES: dict[str, Study] = {
    "classic-control": Study(
        "Batch actor-critic on classic control",
        "Figure 3",
        _CLASSIC,
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none", "area", _DOMINATES),
            Expectation("averaging learns faster than power", "averaging", "better than", "power", "area", _DOMINATES),
            Expectation("averaging is as good as the original", "averaging", "as good as", "none", "area", ("Acrobot-v1",)),
            Expectation("averaging is as good as power", "averaging", "as good as", "power", "area", ("Acrobot-v1",)),
            Expectation("averaging ends higher than the original", "averaging", "better than", "none", "final", _CAR),
            Expectation("averaging ends higher than power", "averaging", "better than", "power", "final", _CAR),
        ),
        note="On MountainCarContinuous observations are normalised by a running filter.",
    ),
    "mujoco": Study(
        "PPO on MuJoCo",
        "Figure 4",
        _MUJOCO,
        (
            Expectation("power ends lower than the original", "power", "worse than", "none", "final"),
            Expectation("averaging ends as high as the original", "averaging", "as good as", "none", "final"),
            Expectation("averaging ends higher than power", "averaging", "better than", "power", "final"),
        ),
    ),
    "mountaincar-pointmass": Study(
        "PPO on MountainCarContinuous and PointMass",
        "Figure 6",
        (_MOUNTAIN_CAR, Task("avgcorr/PointMassEasy-v0", 2_000_000)),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none"),
            Expectation("averaging ends higher than the original", "averaging", "better than", "none", "final"),
        ),
    ),
    "dm-reacher": Study(
        "PPO on dm_control's reacher with sparse rewards",
        "Appendix G.2",
        tuple(
            Task(f"avgcorr/SparseReacher{name}-v0", 200_000, seeds=5, full_seeds=30, open_ended=True)
            for name in ("Easy", "Hard")
        ),
        (
            Expectation("averaging is as good as the original", "averaging", "as good as", "none"),
            Expectation("averaging is as good as power", "averaging", "as good as", "power"),
        ),
        note=(
            "The paper shows curves and claims nothing of them in words; that averaging is as good is our reading, and γ^t "
            "was added to it when these curves had been seen. An episode lasts until the target is reached (after 10,000 "
            "steps it is cut and bootstrapped); the one that is open at the end of a run counts with its return so far."
        ),
    ),
    "ur5": Study(
        "PPO on UR5 Reacher",
        "Figure 5",
        (Task("avgcorr/UR5Reacher-v0", 150_000, seeds=10, full_seeds=3),),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none"),
            Expectation("power learns faster than the original", "power", "better than", "none"),
            Expectation("averaging ends higher than the original", "averaging", "better than", "none", "final"),
            Expectation("power ends higher than the original", "power", "better than", "none", "final"),
        ),
        note="Simulated here; the paper has a real arm.",
    ),
    "discounted": Study(
        "Discounted returns",
        "Appendix H",
        (*_CLASSIC, *_MUJOCO, _MOUNTAIN_CAR),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none", "area", _DOMINATES),
            Expectation("averaging learns faster than power", "averaging", "better than", "power", "area", _DOMINATES, "bac"),
            Expectation("averaging is as good as the original", "averaging", "as good as", "none", "area", ("Acrobot-v1",)),
            Expectation("averaging is as good as power", "averaging", "as good as", "power", "area", ("Acrobot-v1",)),
            Expectation("power ends lower than the original", "power", "worse than", "none", "final", _MUJOCO_IDS),
            Expectation("averaging ends as high as the original", "averaging", "as good as", "none", "final", _MUJOCO_IDS),
            Expectation(
                "power ends lower than the original", "power", "worse than", "none", "final", _CAR, "ppo", gammas=(0.99, 0.993)
            ),
            Expectation("averaging ends higher than the original", "averaging", "better than", "none", "final", _CAR, "ppo"),
        ),
        gammas=GAMMAS,
        note=(
            "The runs are those of classic-control, mujoco and mountaincar-pointmass, each trained with the γ of its "
            "settings; the return of an episode is discounted from its start."
        ),
    ),
    "hyperparameter-transfer": Study(
        "Three settings carried over to other tasks",
        "Appendix G.1",
        tuple(Task(f"{name}-v4", 100_000) for name in ("Walker2d", "InvertedDoublePendulum", "Swimmer", "Reacher")),
        (
            Expectation("averaging is as good as the original", "averaging", "as good as", "none"),
            Expectation("averaging is as good as power", "averaging", "as good as", "power"),
        ),
        note=(
            "The paper does not print its three settings, tuned on Hopper and Ant. Here: those it tuned for Ant, HalfCheetah "
            "and PointMass, none of them on one of these tasks. Every variant gets all three, and its best counts: the best "
            "of few runs looks better than it is."
        ),
        borrowed=("Ant-v4", "HalfCheetah-v4", "avgcorr/PointMassEasy-v0"),
    ),
}
