"""Verdicts: by intervals, from figures worked out by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sb3_avgcorr.reporting.claims import between, in_words, judge, verdicts_on
from sb3_avgcorr.reporting.statistics import Estimate, interval

B = np.array([99.0, 100.0, 101.0, 100.0])


@pytest.mark.parametrize(
    "relation, shift, expected",
    [
        ("better than", 5.0, "supported"),
        ("better than", -5.0, "contradicted"),
        ("better than", 0.0, "cannot tell"),
        ("worse than", -5.0, "supported"),
        ("worse than", 5.0, "contradicted"),
        ("worse than", 0.0, "cannot tell"),
        ("as good as", 0.0, "supported"),
        ("as good as", 5.0, "supported"),
        ("as good as", -20.0, "contradicted"),
        ("as good as", -10.0, "cannot tell"),
        ("not significantly worse than", 0.0, "supported"),
        ("not significantly worse than", -1.0, "supported"),  # the interval of ±1.4 reaches above 0
        ("not significantly worse than", -5.0, "contradicted"),
        ("within 5 % of", -4.9, "supported"),
        ("within 5 % of", -5.1, "contradicted"),
        ("within 5 % of", 50.0, "supported"),
    ],
)
def test_relations(relation: Any, shift: float, expected: str) -> None:
    verdict, apart = judge(relation, B + shift, B)
    assert verdict == expected
    assert apart.value == pytest.approx(shift)


def test_equal_figures_of_0_are_as_good() -> None:
    assert judge("as good as", [0.0, 0.0, 0.0], [0.0, 0.0])[0] == "supported"
    assert judge("as good as", [-1.0, -1.0], [0.0, 0.0])[0] == "contradicted"


def test_margins_are_parts_of_the_size_also_of_negative_returns() -> None:
    assert judge("within 5 % of", -B - 4.9, -B)[0] == "supported"
    assert judge("within 5 % of", -B - 5.1, -B)[0] == "contradicted"


@pytest.mark.parametrize(
    "relation", ["better than", "worse than", "as good as", "not significantly worse than", "within 5 % of"]
)
def test_one_run_decides_nothing(relation: Any) -> None:
    assert judge(relation, [1000.0], [1.0])[0] == "cannot tell"


def test_between_limits() -> None:
    found = Estimate(1.0, 0.9, 1.1)
    assert between(found, 0.5) == "supported"
    assert between(found, 1.0) == "cannot tell"
    assert between(found, high=0.5) == "contradicted"
    assert between(found, 0.5, 1.05) == "cannot tell"
    assert between(interval([3.0]), 0.5) == "cannot tell"  # one run has no interval


def test_verdicts_are_read_off_a_page() -> None:
    page = "\n".join(
        [
            "| claim | verdict |",
            "|---|---|",
            "| a | supported |",
            "| is contradicted | cannot tell |",
            "| b | **contradicted** |",
            "| c | cannot tell |",
            "Nothing is supported here.",
        ]
    )
    found = verdicts_on(page)
    assert found == Counter({"cannot tell": 2, "supported": 1, "contradicted": 1})
    assert in_words(found) == "1 supported, 1 contradicted, 2 cannot tell"
    assert in_words(Counter()) == ""
