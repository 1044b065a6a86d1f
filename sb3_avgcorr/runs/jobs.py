"""What a training run of a comparison is, and what it leaves: a folder with its result, or a checkpoint to go on from."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RESULT, CHECKPOINT, LOG, PROGRESS, LOCK = "result.json", "checkpoint.bin", "log.txt", "progress", "lock"

CHECKPOINT_KEYS = {"model", "reset_by_load", "actions", "log", "settings", "random"}

#: discount factors with which every run's returns are written down beside the algorithm's own, so that runs whose γ differ can
#: be compared: those of the paper's Appendix H
GAMMAS = (0.99, 0.993, 0.995)


def discounted_column(gamma: float) -> str:
    """
    :param gamma: one of ``GAMMAS``
    :return: name of the column with the returns that it discounts
    """
    return f"discounted_{gamma:g}"


COLUMNS = ("step", "return", "discounted", "length", *map(discounted_column, GAMMAS))


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
    :param eval_episodes: after training, episodes of the final policy (its actions drawn, as in training) in the environment
        without :class:`~sb3_avgcorr.envs.wrappers.GeometricTermination`
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

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.algo)
        for name in ("hyperparams", "env_kwargs"):
            object.__setattr__(self, name, copy.deepcopy(dict(getattr(self, name))))
        for name, least in (("steps", 1), ("seed", 0), ("eval_episodes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}")
            object.__setattr__(self, name, int(value))

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

    def description(self) -> dict[str, Any]:
        """
        :return: every field but the label, ready for JSON
        """
        fields = asdict(self)
        del fields["label"]
        described: dict[str, Any] = json.loads(json.dumps(fields, sort_keys=True, default=describe))
        return described


@dataclass(frozen=True)
class Episodes:
    """
    Finished episodes in the order of their ends, one entry each.

    :param step: environment steps of the run at the episode's end
    :param returns: undiscounted return, of rewards before any normalisation
    :param discounted: return from the episode's start, discounted with the algorithm's γ
    :param length: number of steps
    :param discounted_at: the same for each of ``GAMMAS``
    """

    step: npt.NDArray[np.int64]
    returns: Array
    discounted: Array
    length: npt.NDArray[np.int64]
    discounted_at: Mapping[float, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Result:
    """
    What a run left.

    :param job: the run
    :param gamma: the algorithm's γ
    :param episodes: episodes of training
    :param evaluation: episodes afterwards (``eval_episodes``); empty if none were asked for
    :param settings: hyperparameters, as RL Zoo records them
    :param parameters: digest of all parameters at the end
    :param open: episodes that were not over at the end of training, as far as they came
    """

    job: Job
    gamma: float
    episodes: Episodes
    evaluation: Episodes
    settings: Mapping[str, Any]
    parameters: str
    open: Episodes = field(default_factory=lambda: _episodes({key: [] for key in COLUMNS}))

    def with_open_episodes(self) -> Result:
        """
        :return: the same, with the open episodes counted as if they had ended with the run
        """
        ended, still = self.episodes, self.open
        joined = Episodes(
            np.concatenate((ended.step, still.step)),
            np.concatenate((ended.returns, still.returns)),
            np.concatenate((ended.discounted, still.discounted)),
            np.concatenate((ended.length, still.length)),
            {gamma: np.concatenate((ended.discounted_at[gamma], still.discounted_at[gamma])) for gamma in GAMMAS},
        )
        return replace(self, episodes=joined)


def read_result(job: Job, folder: Path | str) -> Result | None:
    """
    :param job: a run
    :param folder: where runs are
    :return: its result; None if there is none yet
    """
    path = Path(folder) / job.name / RESULT
    if not path.exists():
        return None
    return parse_result(job, read_document(path))


def parse_result(job: Job, document: Mapping[str, Any]) -> Result:
    """
    :param job: a run
    :param document: what its result file holds
    :return: the result
    """
    return Result(
        job=job,
        gamma=document["gamma"],
        episodes=_episodes(document["episodes"]),
        evaluation=_episodes(document["evaluation"]),
        settings=document["settings"],
        parameters=document["parameters"],
        open=_episodes(document.get("open") or {key: [] for key in COLUMNS}),  # not kept by the first versions
    )


def set_aside_corrupt(home: Path) -> list[str]:
    """
    Rename files of a run that are corrupt or half-written, so that they are made again.

    :param home: the run's folder
    :return: what was found, in words
    """
    notes = []
    for name, read in ((RESULT, _check_result), (CHECKPOINT, read_checkpoint)):
        path = home / name
        if path.exists():
            try:
                read(path)
            except FileNotFoundError:  # another runner, which is at the run, has put it away
                continue
            except ValueError as error:
                with suppress(FileNotFoundError):
                    notes.append(f"{error}; set aside as {rename_aside(path, 'corrupt')}, and made again")
    return notes


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """
    Write a JSON file, all or nothing, with a digest of itself.

    :param path: the file
    :param document: what it is to hold
    """
    write_bytes(path, (json.dumps({"sha256": digest(document), **document}, sort_keys=True) + "\n").encode())


def read_document(path: Path) -> dict[str, Any]:
    """
    :param path: a file of :func:`write_document`
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    try:
        document = json.loads(path.read_bytes())
        sound = document.pop("sha256") == digest(document)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is corrupt ({type(error).__name__}: {error})") from error
    if not sound:
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    return dict(document)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """
    :param path: a checkpoint
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    content = path.read_bytes()
    if content[:32] != hashlib.sha256(content[32:]).digest():
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    try:
        checkpoint: dict[str, Any] = pickle.loads(content[32:])
        missing = CHECKPOINT_KEYS - checkpoint.keys()
    except Exception as error:  # unpickling another version's classes may fail in any way
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if missing:
        raise ValueError(f"{path} cannot be used (it lacks {', '.join(sorted(missing))})")
    return checkpoint


def _episodes(columns: Mapping[str, list[float]]) -> Episodes:
    step, returns, discounted, length = (columns[name] for name in ("step", "return", "discounted", "length"))
    return Episodes(
        np.asarray(step, dtype=np.int64),
        np.asarray(returns, dtype=np.float64),
        np.asarray(discounted, dtype=np.float64),
        np.asarray(length, dtype=np.int64),
        {gamma: np.asarray(columns[discounted_column(gamma)], dtype=np.float64) for gamma in GAMMAS},
    )


def _check_result(path: Path) -> None:
    document = read_document(path)
    missing = {"job", "gamma", "settings", "parameters", "episodes", "evaluation"} - document.keys()
    if missing:
        raise ValueError(f"{path} is corrupt (it lacks {', '.join(sorted(missing))})")
    for name in {"episodes", "evaluation", "open"} & document.keys():
        try:
            _episodes(document[name])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used ({name}: {type(error).__name__} {error})") from error


def write_bytes(path: Path, content: bytes) -> None:
    """
    Write a file so that a process that dies in between leaves the old one.

    :param path: the file
    :param content: what it is to hold
    """
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def rename_aside(path: Path, why: str) -> str:
    """
    :param path: a file, which is renamed to the first free ``name.why-N``
    :param why: the reason, in a word
    :return: the new name
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}-{number}")).exists():
        number += 1
    os.replace(path, aside)
    return aside.name


def digest(content: Any) -> str:
    """
    :param content: something for JSON
    :return: its digest
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", name)


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
