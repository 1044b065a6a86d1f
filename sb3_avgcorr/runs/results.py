"""What a run leaves: the episodes of a training run, or the columns of a function."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_avgcorr.runs.files import CHECKPOINT, RESULT, read_checkpoint, read_document, rename_aside
from sb3_avgcorr.runs.jobs import AnyJob, FunctionJob, Job

Array = npt.NDArray[np.float64]

#: discount factors with which every run's returns are written down beside the algorithm's own, so that runs whose γ differ can
#: be compared: those of the paper's Appendix H
GAMMAS = (0.99, 0.993, 0.995)


def discounted_column(gamma: float) -> str:
    """
    Name of the column with the returns that a discount factor gives.

    :param gamma: one of ``GAMMAS``
    """
    return f"discounted_{gamma:g}"


COLUMNS = ("step", "return", "discounted", "length", *map(discounted_column, GAMMAS))


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
    What a training run left.

    :param job: the run
    :param gamma: the algorithm's γ
    :param episodes: episodes of training
    :param evaluation: episodes afterwards (``eval_episodes``); empty if none were asked for
    :param settings: hyperparameters, as RL Zoo records them
    :param parameters: digest of all parameters at the end
    :param open: episodes that were not over at the end of training, as far as they came
    :param probe: figures of the trained model, if the job asked for them
    :param strongest: the greatest strength of any rollout; None: there was no correction, or it is not known
    """

    job: Job
    gamma: float
    episodes: Episodes
    evaluation: Episodes
    settings: Mapping[str, Any]
    parameters: str
    open: Episodes = field(default_factory=lambda: _episodes({key: [] for key in COLUMNS}))
    probe: Mapping[str, float] = field(default_factory=dict)
    strongest: float | None = None

    def with_open_episodes(self) -> Result:
        """
        The same result, with the open episodes counted as if they had ended with the run.
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


@dataclass(frozen=True)
class Columns:
    """
    What a function's run left.

    :param job: the run
    :param columns: lists of numbers or text by name, as the function returned them
    """

    job: FunctionJob
    columns: Mapping[str, list[Any]]


AnyResult = Result | Columns


def read_result(job: AnyJob, folder: Path | str) -> AnyResult | None:
    """
    Read the result of a run.

    :param job: the run
    :param folder: where runs are
    :return: its result; None if there is none yet
    """
    path = Path(folder) / job.name / RESULT
    if not path.exists():
        return None
    return parse_result(job, read_document(path))


def parse_result(job: AnyJob, document: Mapping[str, Any]) -> AnyResult:
    """
    Make a result of what its file holds.

    :param job: the run
    :param document: content of the file
    """
    if isinstance(job, FunctionJob):
        return Columns(job, document["columns"])
    return Result(
        job=job,
        gamma=document["gamma"],
        episodes=_episodes(document["episodes"]),
        evaluation=_episodes(document["evaluation"]),
        settings=document["settings"],
        parameters=document["parameters"],
        open=_episodes(document.get("open") or {key: [] for key in COLUMNS}),  # not kept by the first versions
        probe=document.get("probe") or {},
        strongest=document.get("strongest"),
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
    of_training = {"gamma", "settings", "parameters", "episodes", "evaluation"}
    missing = ({"job"} if "columns" in document else {"job", *of_training}) - document.keys()
    if missing:
        raise ValueError(f"{path} is corrupt (it lacks {', '.join(sorted(missing))})")
    for name in {"episodes", "evaluation", "open"} & document.keys():
        try:
            _episodes(document[name])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used ({name}: {type(error).__name__} {error})") from error
