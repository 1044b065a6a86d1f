"""The paper's experiments by name: what is run, and how claims are judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sb3_avgcorr.cli.main import main as command_line
from sb3_avgcorr.cli.reproduce import EXPERIMENTS, main
from sb3_avgcorr.errors import UserError
from sb3_avgcorr.paper import claims
from sb3_avgcorr.paper.claims import judge, run_study
from sb3_avgcorr.paper.training import STUDIES, Expectation, plan
from sb3_avgcorr.reporting.figures import Claim, interval, within
from sb3_avgcorr.runs.jobs import GAMMAS, Episodes, Job, Result
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.runs.training import settings_of
from sb3_avgcorr.studies import long_tail

NAMED_BY_THE_ISSUE = {
    "counterexample",
    "bias",
    "bias-ratio",
    "dotreacher",
    "classic-control",
    "mujoco",
    "mountaincar-pointmass",
    "dm-reacher",
    "ur5",
    "distances",
    "discounted",
    "hyperparameter-transfer",
}


def test_every_experiment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXPERIMENTS.keys() >= NAMED_BY_THE_ISSUE
    assert command_line(["reproduce", "--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == EXPERIMENTS.keys()


def test_unknown_name_and_bad_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["reproduce", "mujocco"]) == 2
    assert "'mujoco'" in capsys.readouterr().err
    with pytest.raises(UserError, match="--seeds is 0"):
        main(["ur5", "--seeds", "0"])


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
    ],
)
def test_verdicts(relation: Any, shift: float, expected: str) -> None:
    b = np.array([99.0, 100.0, 101.0, 100.0])
    assert judge(Expectation("", "x", relation, "y"), b + shift, b)[0] == expected


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_a_study_has_settings(name: str) -> None:
    """Each entry exists, passes the check against the algorithm's signature, and differs from the others as it should."""
    for cell, jobs in plan(STUDIES[name], full=False, seeds=1).items():
        settings = settings_of(jobs[0])
        expected = None if cell.variant == "none" else cell.variant
        if cell.settings == "equal":
            assert settings.get("correction", "averaging") == expected
        assert jobs[0].paper


def test_equal_settings_differ_in_the_correction_alone() -> None:
    planned = plan(STUDIES["mountaincar-pointmass"], full=False, seeds=2)
    equal = {(c.task.env, c.variant): j for c, j in planned.items() if c.settings == "equal"}
    own = {(c.task.env, c.variant): j for c, j in planned.items() if c.settings == "own"}
    env = "MountainCarContinuous-v0"
    # the same run serves both comparisons
    assert [job.name for job in equal[env, "averaging"]] == [job.name for job in own[env, "averaging"]]
    averaging, none = (settings_of(equal[env, variant][0]) for variant in ("averaging", "none"))
    assert {key for key in none if none[key] != averaging.get(key, "missing")} == {
        "correction",
        "critic_epochs",
        "critic_learning_rate",
    }
    # the passes that train the critic are as many and as fast
    assert none["critic_epochs"] == averaging["correction_epochs"]
    assert none["critic_learning_rate"] == averaging["correction_learning_rate"]
    assert settings_of(own[env, "none"][0])["learning_rate"] != none["learning_rate"]


def test_full_size_is_the_papers() -> None:
    sizes = {cell.task.env: (len(jobs), jobs[0].steps) for cell, jobs in plan(STUDIES["mujoco"], full=True).items()}
    assert set(sizes.values()) == {(10, 2_000_000)}
    assert {len(jobs) for jobs in plan(STUDIES["mujoco"], full=False).values()} == {3}


def test_full_size_of_the_other_studies() -> None:
    for name, seeds in (("dm-reacher", 30), ("ur5", 3), ("classic-control", 10)):
        assert {len(jobs) for jobs in plan(STUDIES[name], full=True).values()} == {seeds}


def test_borrowed_settings_are_the_variants_own_or_averagings() -> None:
    planned = plan(STUDIES["hyperparameter-transfer"], full=False, seeds=1)
    rates = {
        (cell.settings, cell.variant): settings_of(jobs[0])["learning_rate"]
        for cell, jobs in planned.items()
        if cell.task.env == "Reacher-v4" and cell.settings_of == "Ant-v4"
    }
    assert rates == {
        ("own", "none"): 0.0009,
        ("own", "power"): 0.0003,
        ("own", "averaging"): 0.0003,
        ("equal", "none"): 0.0003,
        ("equal", "power"): 0.0003,
        ("equal", "averaging"): 0.0003,
    }


def made_up(job: Job, level: float) -> Result:
    """A run of ten episodes, one a tenth of the steps."""
    rng = np.random.default_rng(job.seed)
    step = np.linspace(job.steps / 10, job.steps, 10).astype(np.int64)
    returns = level + rng.normal(size=10)
    at = {gamma: returns * gamma for gamma in GAMMAS}
    episodes = Episodes(step, returns, 0.5 * returns, np.full(10, 5), at)
    return Result(job, 0.99, episodes, episodes, {}, "")


def outcome_of(level: dict[str, float], failing: str = "") -> Any:
    def run_jobs(jobs: list[Job], folder: Path, **kwargs: Any) -> Outcome:
        done = {job: made_up(job, level[job.label]) for job in jobs if job.label != failing}
        return Outcome(done, {job: "Traceback\nValueError: no" for job in jobs if job.label == failing})

    return run_jobs


def test_study_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "run_jobs", outcome_of({"none": 10.0, "power": 50.0, "averaging": 30.0}))
    result = run_study("ur5", STUDIES["ur5"], tmp_path)
    verdicts = {(claim["claim"], claim["settings"]): claim["verdict"] for claim in result["claims"]}
    assert set(verdicts.values()) == {"supported"}
    assert len(verdicts) == 8
    text = (tmp_path / "ur5.md").read_text()
    assert "Smaller than the paper" in text
    assert "`sb3-avgcorr reproduce ur5`" in text
    for name in ("ur5.csv", "ur5-own.png", "ur5-equal.png"):
        assert (tmp_path / name).stat().st_size > 500
    assert result["failed"] == []


def test_size_is_what_was_run_not_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "run_jobs", outcome_of({"none": 10.0, "power": 50.0, "averaging": 30.0}))
    small = run_study("ur5", STUDIES["ur5"], tmp_path, full=True, steps=1000)["report"]
    large = run_study("ur5", STUDIES["ur5"], tmp_path, seeds=3, steps=150_000)["report"]
    assert "Smaller than the paper" in small
    assert "The paper’s size" in large
    for report in (small, large):
        assert "Time limits count as termination" in report


def test_run_without_an_end_of_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_jobs(jobs: list[Job], folder: Path, **kwargs: Any) -> Outcome:
        done = {job: made_up(job, -100.0) for job in jobs}
        nothing = Episodes(*(np.empty(0, dtype) for dtype in (int, float, float, int)), {g: np.empty(0) for g in GAMMAS})
        for job in jobs:
            if job.seed == 0:  # its only episode is still open
                done[job] = replace(done[job], episodes=nothing, open=replace(done[job].episodes))
        return Outcome(done)

    monkeypatch.setattr(claims, "run_jobs", run_jobs)
    reacher = run_study("dm-reacher", STUDIES["dm-reacher"], tmp_path)
    assert reacher["failed"] == []
    assert len(pd.read_csv(tmp_path / "dm-reacher.csv")["seed"].unique()) == 3
    arm = run_study("ur5", STUDIES["ur5"], tmp_path)  # where an episode lasts 4 s, and a run without an end is none
    assert "no episode ended" in arm["report"]
    assert "nan" not in arm["report"]


def test_discounted_returns_are_those_of_the_other_studies_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(study: str) -> set[str]:
        return {job.name for jobs in plan(STUDIES[study], full=False).values() for job in jobs}

    assert names("discounted") <= names("classic-control") | names("mujoco") | names("mountaincar-pointmass")
    assert names("discounted") >= names("classic-control") | names("mujoco")

    monkeypatch.setattr(claims, "run_jobs", outcome_of({"none": 100.0, "power": 500.0, "averaging": 300.0}))
    result = run_study("discounted", STUDIES["discounted"], tmp_path)
    frame = pd.read_csv(tmp_path / "discounted.csv")
    assert set(frame["gamma"]) == set(GAMMAS)
    means = frame[frame["variant"] == "none"].groupby("gamma")["discounted"].mean()
    assert means[0.99] / means[0.995] == pytest.approx(0.99 / 0.995)
    # continuous mountain car is there twice, for either algorithm
    places = {claim["task"] for claim in result["claims"]}
    assert {"MountainCarContinuous-v0 (BAC), γ = 0.993", "MountainCarContinuous-v0 (PPO), γ = 0.993"} <= places


def test_one_seed_decides_nothing() -> None:
    assert np.isnan(interval([3.0])[1])
    assert Claim("", True, *interval([3.0])).holds is None
    assert Claim("x", True, *interval([3.0])).row == "| x | 3 | not decided |"
    assert within((1.0, 0.9, 1.1), 0.5) is True
    assert within((1.0, 0.9, 1.1), 1.0) is None
    assert within((1.0, 0.9, 1.1), high=0.5) is False


def test_failed_runs_are_told_and_the_rest_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "run_jobs", outcome_of({"none": 30.0, "averaging": 10.0}, failing="power"))
    result = run_study("ur5", STUDIES["ur5"], tmp_path)
    assert {claim["verdict"] for claim in result["claims"]} == {"contradicted"}
    assert len(result["failed"]) == 6  # three seeds with either settings
    assert "ValueError: no" in result["report"]


def test_best_of_the_borrowed_settings_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_jobs(jobs: list[Job], folder: Path, **kwargs: Any) -> Outcome:
        level = {0.0003: 1.0, 0.0009: 5.0}  # Ant's learning rate, and the other two's
        return Outcome({job: made_up(job, level[job.hyperparams["learning_rate"]]) for job in jobs})

    monkeypatch.setattr(claims, "run_jobs", run_jobs)
    result = run_study("hyperparameter-transfer", STUDIES["hyperparameter-transfer"], tmp_path)
    rows = [line for line in result["report"].splitlines() if line.startswith("| Walker2d-v4 | averaging")]
    assert len(rows) == 2  # with own and with equal settings
    assert not any("settings of Ant" in row for row in rows)


def test_long_tail_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"biased": 10.0, "power": 30.0, "averaging": 31.0, "geometric": 30.5}
    monkeypatch.setattr(long_tail, "run_jobs", outcome_of(levels))
    result = long_tail.run(tmp_path, tasks={"avgcorr/LongTail-v0": (0.0, 0.5)})
    verdicts = {claim["claim"]: claim["verdict"] for claim in result["claims"] if claim["task"].endswith("0.5")}
    assert verdicts["averaging has the higher discounted return than PPO"] == "supported"
    assert (tmp_path / "long-tail-discounted.png").exists()
    assert len((tmp_path / "long-tail.csv").read_text().splitlines()) == 1 + 2 * 4 * 3


def test_long_tail_runs(tmp_path: Path) -> None:
    """The real thing, small: four variants, evaluated on the task whose episodes have their full length."""
    tasks = {"avgcorr/LongTail-v0": (0.2,)}
    result = long_tail.run(tmp_path, seeds=1, steps=2000, tasks=tasks)
    assert result["failed"] == []
    lines = (tmp_path / "long-tail.csv").read_text().splitlines()
    assert len(lines) == 5
    assert all(abs(float(line.split(",")[-1])) > 0 for line in lines[1:])


def test_only_some_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "run_jobs", outcome_of({"none": 10.0, "power": 50.0, "averaging": 30.0}))
    result = run_study("mujoco", STUDIES["mujoco"], tmp_path, envs=["Ant-v4"])
    assert {claim["task"] for claim in result["claims"]} == {"Ant-v4"}
    assert "reproduce mujoco --envs Ant-v4" in result["report"]
    with pytest.raises(UserError, match="'Ant-v4'"):
        run_study("mujoco", STUDIES["mujoco"], tmp_path, envs=["Ant-v3"])


def test_choice_of_tasks_is_checked_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str]]] = []

    def run(name: str) -> Any:
        def note(options: Any) -> dict[str, Any]:
            ran.append((name, options.envs))
            return {"report": "", "claims": []}

        return note

    for name, experiment in EXPERIMENTS.items():
        monkeypatch.setitem(EXPERIMENTS, name, replace(experiment, run=run(name)))
    out = ["--out", str(tmp_path)]
    with pytest.raises(UserError, match=r"'Ant-v4' \(--envs\) is not a task of counterexample"):
        main(["counterexample", "--envs", "Ant-v4", *out])
    with pytest.raises(UserError, match=r"'Ant-v3'.*'Ant-v4'"):
        main(["all", "--envs", "Ant-v3", *out])
    assert ran == []
    assert main(["all", "--envs", "Ant-v4", "CartPole-v1", *out]) == 0
    assert dict(ran) == {"classic-control": ["CartPole-v1"], "mujoco": ["Ant-v4"], "discounted": ["Ant-v4", "CartPole-v1"]}


def test_stopped_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(options: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setitem(EXPERIMENTS, "ur5", replace(EXPERIMENTS["ur5"], run=stop))
    assert main(["ur5", "--out", str(tmp_path)]) == 130
    assert "The same command goes on from here" in capsys.readouterr().err


def test_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for command in (["reproduce", "ur5"], ["compare", "--env", "CartPole-v1"]):
        assert command_line([*command, "--out", str(tmp_path / "file")]) == 2
        assert "(--out) cannot be a folder" in capsys.readouterr().err
