"""Pages, figures and the sum over several tasks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rliable import metrics

from sb3_avgcorr.reporting import aggregate
from sb3_avgcorr.reporting.claims import Claim, verdicts_on
from sb3_avgcorr.reporting.figures import COLOURS, FEW, curves, thousands
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table, write
from sb3_avgcorr.reporting.statistics import Estimate

FRAME = pd.DataFrame(
    {
        "step": [0, 200_000] * 4,
        "y": [1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 2.0, 3.0],
        "who": ["none"] * 4 + ["auto"] * 4,
        "seed": [0, 0, 1, 1] * 2,
    }
)


def findings() -> Findings:
    figure = curves(FRAME, x="step", y="y", line="who", ylabel="return")
    claims = [
        Claim("one holds", "supported", Estimate(1.0, 0.5, 1.5), "here"),
        Claim("two does not", "contradicted", Estimate(1.0, np.nan, np.nan)),
    ]
    section = Section(
        "A part", [Picture("test.png", "A picture", figure)], claims, [Table(["a", "b"], [["1", "2"]])], "Words."
    )
    return Findings("test", "Title", ["A note."], [section], {"test": FRAME}, ["a run: no luck"], "do it again")


def test_page(tmp_path: Path) -> None:
    found = findings()
    write(found, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"test.md", "test.csv", "test.png"} == set(found.files)
    page = (tmp_path / "test.md").read_text()
    for line in (
        "# Title",
        "A note.",
        "Made by `do it again`; every figure is in `test.csv`.",
        "## A part",
        "![A picture](test.png)",
        "| claim | where | figure (95 % interval) | verdict |",
        "| one holds | here | 1 (0.5 to 1.5) | supported |",
        "| two does not |  | 1 | **contradicted** |",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "Failed: a run: no luck",
    ):
        assert line in page.splitlines()
    assert "\n\n\n" not in page
    assert verdicts_on(page).total() == 2
    assert len(pd.read_csv(tmp_path / "test.csv")) == len(FRAME)


def test_curves_by_hand() -> None:
    figure = curves(FRAME, x="step", y="y", line="who", ylabel="return")
    axis = figure.axes[0]
    lines = {line.get_label(): line for line in axis.get_lines()}
    np.testing.assert_allclose(lines["none"].get_ydata(), [2.0, 3.0])
    np.testing.assert_allclose(lines["auto"].get_ydata(), [1.0, 2.0])
    assert lines["auto"].get_color() == COLOURS["auto"]
    assert axis.get_xlabel() == "environment steps"
    assert axis.get_ylabel() == "return"


@pytest.mark.parametrize("seeds", [FEW - 1, FEW])
def test_few_runs_are_drawn_and_many_shaded(seeds: int) -> None:
    frame = pd.DataFrame(
        {"step": [0, 1] * seeds, "y": np.arange(2.0 * seeds), "who": "none", "seed": np.arange(seeds).repeat(2)}
    )
    axis = curves(frame.assign(who="none"), x="step", y="y", line="who").axes[0]
    thin = [np.asarray(line.get_ydata()) for line in axis.get_lines()[1:]]
    if seeds < FEW:
        np.testing.assert_allclose(thin, frame["y"].to_numpy().reshape(seeds, 2))
        assert not axis.collections
    else:
        assert not thin
        assert len(axis.collections) == 1


@pytest.mark.parametrize("steps, words", [(0, "0"), (500, "500"), (200_000, "200k"), (1_500_000, "1.5M"), (2500, "2.5k")])
def test_steps_as_they_are_said(steps: int, words: str) -> None:
    assert thousands(steps) == words


def test_panels_and_laps() -> None:
    frame = pd.DataFrame({"laps": [1, 10, 50] * 2, "y": np.arange(6.0), "v": "auto", "task": ["a"] * 3 + ["b"] * 3, "seed": 0})
    figure = curves(frame, x="laps", y="y", line="v", panel="task", log_x=True)
    assert [axis.get_title() for axis in figure.axes] == ["a", "b"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1", "10", "50"]


def test_sum_over_tasks_is_rliables() -> None:
    rng = np.random.default_rng(0)
    values = {
        name: {task: scale * (level + rng.normal(size=5)) for task, scale in (("a", 1.0), ("b", 100.0))}
        for name, level in (("none", 5.0), ("auto", 8.0))
    }
    zero, one = {"a": 0.0, "b": 0.0}, {"a": 5.0, "b": 500.0}
    scores = aggregate.normalised(values, zero, one)
    np.testing.assert_allclose(scores["auto"][:, 1], values["auto"]["b"] / 500.0)
    middle = aggregate.interquartile_means(scores)
    assert middle["auto"].value == pytest.approx(metrics.aggregate_iqm(scores["auto"]))
    assert middle["none"].low < 1.0 < middle["none"].high
    better = aggregate.improvements(scores, "none")
    assert better.keys() == {"auto"}
    assert better["auto"].value == pytest.approx(metrics.probability_of_improvement(scores["auto"], scores["none"]))
    assert better["auto"].low > 0.5
    figure = aggregate.profile(scores, "score")
    shares = {line.get_label(): np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert (shares["auto"] >= shares["none"]).all()
    assert shares["none"][0] == 1.0


def test_tasks_with_different_numbers_of_runs() -> None:
    scores = aggregate.normalised(
        {"none": {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0]}}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 2.0}
    )
    np.testing.assert_allclose(scores["none"], [[1.0, 0.5], [2.0, 1.0]])
