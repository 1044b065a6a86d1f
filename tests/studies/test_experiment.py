"""The one path of all experiments: plan, run, judge, write."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.reporting.findings import Findings
from sb3_avgcorr.runs.jobs import AnyJob, FunctionJob
from sb3_avgcorr.runs.runner import Observer, Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, conduct, frame_of, sizes


class Small(Experiment):
    """Two variants of a function of ours, one of which can be made to fail."""

    name, where, purpose = "small", "ours", "to try the path"

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def plan(self, size: Size) -> Plan:
        def job(variant: str, seed: int) -> FunctionJob:
            theta: Any = "text" if self.fails and variant == "power" else 0.0
            settings = {"agent": variant, "gammas": [0.5], "points": 2, "theta": theta}
            return FunctionJob("sb3_avgcorr.paper.counterexample.measure", seed, size.steps or 20, variant, settings)

        return {variant: [job(variant, seed) for seed in range(size.seeds or 2)] for variant in ("none", "power")}

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        return Findings(self.name, "Small", data={self.name: frame_of(plan, outcome, ("variant",))})


def test_path(tmp_path: Path) -> None:
    found = conduct(Small(), Size(seeds=2, steps=10), tmp_path, workers=2)
    assert found.command == "sb3-avgcorr reproduce small --seeds 2 --steps 10"
    assert found.failed == []
    frame = pd.read_csv(tmp_path / "small.csv")
    assert set(frame.columns) == {"variant", "seed", "gamma", "step", "optimal_action"}
    assert len(frame) == 2 * 2 * 3
    assert len(list((tmp_path / "runs").iterdir())) == 4
    # a larger one makes only what is missing
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    conduct(Small(), Size(seeds=3, steps=10), tmp_path, workers=2)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 6


def test_seed_by_seed(tmp_path: Path) -> None:
    """Whoever is stopped half-way has half of the seeds of every variant, not all of one."""

    class Order(Observer):
        seeds: list[int]

        def begin(self, jobs: Sequence[AnyJob], finished: Collection[str], steps: Mapping[str, int]) -> None:
            self.seeds = [job.seed for job in jobs]

    order = Order()
    conduct(Small(), Size(seeds=3, steps=10), tmp_path, workers=2, observer=order)
    assert order.seeds == [0, 0, 1, 1, 2, 2]


def test_what_there_is_so_far(tmp_path: Path) -> None:
    """No run is made, not even begun; the page says how many there are."""
    with pytest.raises(UserError, match=r"No run of sb3-avgcorr reproduce small --seeds 3 --steps 10 is in"):
        conduct(Small(), Size(seeds=3, steps=10), tmp_path, so_far=True)
    assert not any(tmp_path.iterdir())  # a page that says nothing would replace one that does
    whole = conduct(Small(), Size(seeds=2, steps=10), tmp_path, workers=2)
    assert "so far" not in whole.report
    found = conduct(Small(), Size(seeds=3, steps=10), tmp_path, so_far=True)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert found.failed == []
    pd.testing.assert_frame_equal(found.data["small"], whole.data["small"])
    assert "Made by `sb3-avgcorr reproduce small --seeds 3 --steps 10 --so-far` (4 of 6 runs so far)" in found.report
    assert (tmp_path / "small.md").read_text() == found.report


def test_sizes_in_words() -> None:
    plan = Small().plan(Size(seeds=3, steps=1000))
    runs = {cell: [job.name for job in jobs] for cell, jobs in plan.items()}
    every = pd.DataFrame({"run": runs["none"] + runs["power"]})
    assert sizes(plan, every, lambda cell: "task") == "task 3 seeds of 1,000 steps"
    some = pd.DataFrame({"run": runs["none"][:2] + runs["power"][:1]})
    assert sizes(plan, some, lambda cell: "task") == "task 2 of 3 seeds of 1,000 steps"
    assert sizes(plan, some, str) == "none 2 of 3 seeds of 1,000 steps; power 1 of 3 seeds of 1,000 steps"
    assert sizes(plan, pd.DataFrame(), lambda cell: "task") == "task 0 of 3 seeds of 1,000 steps"


def test_failed_runs_are_told(tmp_path: Path) -> None:
    found = conduct(Small(fails=True), Size(seeds=1), tmp_path / "out", runs=tmp_path / "elsewhere", workers=2)
    assert len(found.failed) == 1
    assert found.failed[0].startswith("power, seed 0: ")
    assert set(found.data["small"]["variant"]) == {"none"}
    assert "Failed: power, seed 0" in (tmp_path / "out" / "small.md").read_text()
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "out" / "runs").exists()


def test_size() -> None:
    assert Size().command("ur5") == "sb3-avgcorr reproduce ur5"
    assert Size(True, 3, 100, ("a", "b")).command("ur5") == "sb3-avgcorr reproduce ur5 --full --seeds 3 --steps 100 --envs a b"
    assert Size().only({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert Size(envs=("b",)).only({"a": 1, "b": 2}) == {"b": 2}
    with pytest.raises(UserError, match="'Ant-v4'"):
        Size(envs=("Ant-v3",)).only({"Ant-v4": 1})
