"""Claims and verdicts: what was to be shown, and what an interval says of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sb3_avgcorr.reporting.statistics import Estimate, difference

Verdict = Literal["supported", "contradicted", "cannot tell"]
Relation = Literal["better than", "as good as", "worse than", "not significantly worse than", "within 5 % of"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
#: "as good as": not worse by more than this part of the other's figure
MARGIN = 0.1
#: "within 5 % of": the mean is not lower by more than this part of the other's
CLOSE = 0.05


@dataclass(frozen=True)
class Claim:
    """
    Something that was to be shown, and what was shown.

    :param text: the claim, in words
    :param verdict: what the runs say of it
    :param figure: the figure it rests on, with its interval
    :param place: where: a task, settings; empty where there is one alone
    """

    text: str
    verdict: Verdict
    figure: Estimate
    place: str = ""


def between(figure: Estimate, low: float = -np.inf, high: float = np.inf) -> Verdict:
    """
    Whether a figure lies between two limits.

    :param figure: the figure with its interval
    :param low: lower limit
    :param high: upper limit
    :return: ``"cannot tell"`` if the interval holds one of the limits, or there is none
    """
    if low < figure.low and figure.high < high:
        return "supported"
    return "contradicted" if figure.high <= low or figure.low >= high else "cannot tell"


def judge(relation: Relation, first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Verdict, Estimate]:
    """
    Whether one variant is to another what was claimed.

    :param relation: what was claimed
    :param first: figures of the first variant, one a run
    :param second: figures of the second
    :return: the verdict, and the difference it rests on
    """
    apart = difference(first, second)
    scale = abs(float(np.mean(np.asarray(second, dtype=np.float64))))
    if relation == "better than":
        verdict = between(apart, low=0.0)
    elif relation == "worse than":
        verdict = between(apart, high=0.0)
    elif relation == "as good as":
        limit = -MARGIN * scale
        verdict = "supported" if apart.low >= limit else between(apart, low=limit)
    elif np.isnan(apart.low):
        verdict = "cannot tell"
    elif relation == "not significantly worse than":
        verdict = "contradicted" if apart.high < 0.0 else "supported"
    else:  # a statement of the means alone
        verdict = "supported" if apart.value >= -CLOSE * scale else "contradicted"
    return verdict, apart


def in_words(verdicts: Counter[Verdict]) -> str:
    """
    How often each verdict was given.

    :param verdicts: the verdicts
    """
    return ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict])


def verdicts_on(page: str) -> Counter[Verdict]:
    """
    The verdicts that a page holds: the last cells of its tables' rows.

    :param page: Markdown, as an experiment leaves it
    """
    cells = re.findall(r"\|\s*\**([a-z ]+?)\**\s*\|\s*$", page, flags=re.MULTILINE)
    return Counter(verdict for cell in cells for verdict in VERDICTS if cell == verdict)
