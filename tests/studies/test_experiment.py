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
from sb3_avgcorr.studies import experiment
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, conduct, frame_of, results_of, sizes, with_earlier


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


class Tabled(Small):
    """The same with all figures in two tables."""

    tables = ("small", "more")

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        rows = [{"run": run.job.name} for results in results_of(plan, outcome).values() for run in results]
        kept = {name: with_earlier(name, pd.DataFrame(rows), plan, outcome)[1] for name in self.tables}
        return Findings(self.name, "Small", data=kept)


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


def test_another_command_adds_to_the_tables_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(jobs: Sequence[AnyJob], folder: Path, **options: Any) -> Outcome:
        monkeypatch.undo()
        conduct(Tabled(), Size(seeds=3, steps=10), tmp_path, runs=tmp_path / "elsewhere", workers=2)
        return experiment.run_jobs(jobs, folder, **options)

    monkeypatch.setattr(experiment, "run_jobs", meanwhile)
    conduct(Tabled(), Size(seeds=1, steps=10), tmp_path, workers=2)
    assert pd.read_csv(tmp_path / "small.csv")["run"].nunique() == 2 * 3


def test_tables_that_cannot_be_gone_on_with_are_not_overwritten(tmp_path: Path) -> None:
    size = Size(seeds=1, steps=10)
    (tmp_path / "small.csv").write_text("run\nx\n")
    with pytest.raises(UserError, match=r"more.csv is missing beside small; put it back"):
        conduct(Tabled(), size, tmp_path, workers=2)
    (tmp_path / "small.csv").replace(tmp_path / "more.csv")
    (tmp_path / "small.csv").write_text("seed\n0\n")
    with pytest.raises(UserError, match=r"small.csv does not name its runs \(no column 'run'\)"):
        conduct(Tabled(), size, tmp_path, workers=2)
    assert (tmp_path / "small.csv").read_text() == "seed\n0\n"


def test_a_run_that_is_in_one_table_alone_is_made_again(tmp_path: Path) -> None:
    """A command was killed between the two."""
    size = Size(seeds=1, steps=10)
    conduct(Tabled(), size, tmp_path, runs=tmp_path / "first", workers=2)
    more = pd.read_csv(tmp_path / "more.csv")
    more[:1].to_csv(tmp_path / "more.csv", index=False)
    conduct(Tabled(), size, tmp_path, runs=tmp_path / "second", workers=2)
    assert len(list((tmp_path / "second").iterdir())) == 1
    assert all(sorted(pd.read_csv(tmp_path / f"{name}.csv")["run"]) == sorted(more["run"]) for name in Tabled.tables)


def test_no_run_leaves_the_page(tmp_path: Path) -> None:
    (tmp_path / "small.md").write_text("what was found before")

    class Failing(Small):
        def plan(self, size: Size) -> Plan:
            return {"power": super().plan(size)["power"]}

    found = conduct(Failing(fails=True), Size(seeds=1), tmp_path, workers=1)
    assert len(found.failed) == 1
    assert (tmp_path / "small.md").read_text() == "what was found before"


def test_a_damaged_result_is_no_result(tmp_path: Path) -> None:
    conduct(Small(), Size(seeds=2, steps=10), tmp_path, workers=2)
    damaged = sorted(tmp_path.glob("runs/*/result.json"))[0]
    damaged.write_text("{")
    found = conduct(Small(), Size(seeds=2, steps=10), tmp_path, so_far=True)
    assert "3 of 4 runs so far" in found.report
    assert damaged.with_name("result.json.corrupt-1").exists()


def test_sizes_in_words() -> None:
    plan = Small().plan(Size(seeds=3, steps=1000))
    runs = {cell: [job.name for job in jobs] for cell, jobs in plan.items()}
    every = pd.DataFrame({"run": runs["none"] + runs["power"]})
    assert sizes(plan, every, lambda cell: "task") == "task 3 seeds of 1,000 steps"
    some = pd.DataFrame({"run": runs["none"][:2] + runs["power"][:1]})
    assert sizes(plan, some, lambda cell: "task") == "task 1 to 2 of 3 seeds of 1,000 steps"
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
