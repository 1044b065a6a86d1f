"""What a run is: a training run of RL Zoo's kind, or a function of ours with plain arguments. Both have a name and steps."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sb3_avgcorr.runs.files import digest

#: wrappers that end episodes for the sake of training; evaluation is on the task without them
FOR_TRAINING = ("GeometricTermination",)


@dataclass(frozen=True)
class Job:
    """
    One training run.

    :param algo: RL Zoo's name of the algorithm, one of ours or one of its own
    :param env: id of the environment, ``package:id`` if a package must be imported for it
    :param seed: seed of everything
    :param steps: environment steps to train for
    :param label: the variant's name in tables; default: the algorithm's. Runs that differ in nothing else are the same run
    :param paper: take the settings of the paper's file (``hyperparams/paper``)
    :param hyperparams: hyperparameters that differ from the file's entry, as RL Zoo's ``-params``
    :param env_kwargs: arguments of the environment
    :param eval_episodes: after training, episodes of the final policy (its actions drawn, as in training)
    :param eval_without: names of environment wrappers that only training has
    :param probe: dotted name of a function that takes the trained model and returns figures by name, kept in the result
    """

    algo: str
    env: str
    seed: int
    steps: int
    label: str = ""
    paper: bool = False
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eval_episodes: int = 0
    eval_without: tuple[str, ...] = FOR_TRAINING
    probe: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.algo)
        for name in ("hyperparams", "env_kwargs"):
            object.__setattr__(self, name, copy.deepcopy(dict(getattr(self, name))))
        object.__setattr__(self, "eval_without", tuple(self.eval_without))
        _check_numbers(self, steps=1, seed=0, eval_episodes=0)

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @property
    def env_id(self) -> str:
        """Id of the environment without the package."""
        return self.env.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Name of the run's folder: readable, and different for runs that differ in anything but their label."""
        return f"{_file_safe(self.algo)}-{_file_safe(self.env_id)}-{self.seed}-{digest(self.description())[:12]}"

    @property
    def title(self) -> str:
        """What the run is, for messages."""
        return f"{self.label} on {self.env}, seed {self.seed}"

    def description(self) -> dict[str, Any]:
        """
        Everything that tells this run from another.

        :return: every field but the label, ready for JSON
        """
        fields = asdict(self)
        del fields["label"]
        # Younger than the first runs, whose folders must keep their names.
        for name, default in (("eval_without", FOR_TRAINING), ("probe", "")):
            if fields[name] == default:
                del fields[name]
        return plain(fields)


@dataclass(frozen=True)
class FunctionJob:
    """
    One run of a function of ours, which takes ``seed``, ``steps``, ``tell`` (to be called with the steps done so far) and
    ``kwargs``, and returns lists of numbers or text by name.

    :param function: dotted name of the function
    :param seed: seed of everything
    :param steps: steps of the run, by which its progress is measured
    :param label: the variant's name in tables
    :param kwargs: further arguments, plain values
    """

    function: str
    seed: int
    steps: int
    label: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", copy.deepcopy(dict(self.kwargs)))
        _check_numbers(self, steps=1, seed=0)

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @property
    def name(self) -> str:
        """Name of the run's folder: readable, and different for runs that differ in anything but their label."""
        short = ".".join(self.function.rsplit(".", 2)[-2:])
        return f"{_file_safe(short)}-{self.seed}-{digest(self.description())[:12]}"

    @property
    def title(self) -> str:
        """What the run is, for messages."""
        return f"{self.label}, seed {self.seed}"

    def description(self) -> dict[str, Any]:
        """
        Everything that tells this run from another.

        :return: every field but the label, ready for JSON
        """
        fields = asdict(self)
        del fields["label"]
        return plain(fields)


AnyJob = Job | FunctionJob


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """
    Fields of a job as JSON has them.

    :param fields: plain values, classes, numbers and arrays of numpy
    :return: plain values alone
    """
    described: dict[str, Any] = json.loads(json.dumps(dict(fields), sort_keys=True, default=describe))
    return described


def describe(value: Any) -> Any:
    """
    For JSON: classes by their name, numbers of numpy as Python's; whatever has no lasting description is refused.

    :param value: what JSON does not know
    :return: what stands for it
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    raise ValueError(f"A job's settings must be plain values (numbers, text, lists, mappings) or classes, not {value!r}")


def _check_numbers(job: AnyJob, **least: int) -> None:
    for name, smallest in least.items():
        value = getattr(job, name)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < smallest:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {smallest}")
        object.__setattr__(job, name, int(value))


def _file_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", name)
