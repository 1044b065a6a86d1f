"""The paper's training experiments: what is run, with which settings, and how claims are judged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_results import made_up, outcome_of

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.paper.study import TrainingStudy
from sb3_avgcorr.paper.training import STUDIES, plan
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import settings_of
from sb3_avgcorr.runs.results import GAMMAS, Episodes
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies import experiment
from sb3_avgcorr.studies.experiment import Size

LEVELS = {"none": 10.0, "power": 50.0, "averaging": 30.0}


def study(name: str) -> TrainingStudy:
    return TrainingStudy(name, "where", "purpose", STUDIES[name])


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_a_study_has_settings(name: str) -> None:
    """Each entry exists, passes the check against the algorithm's signature, and differs from the others as it should."""
    for cell, jobs in plan(STUDIES[name], full=False, seeds=1).items():
        settings = settings_of(jobs[0])
        expected = None if cell.variant == "none" else cell.variant
        if cell.settings == "equal":
            assert settings.get("correction", "averaging") == expected
        if cell.variant != "none":
            assert settings["correction_strength"] == 1.0  # the paper corrects in full
        assert jobs[0].paper


def test_equal_settings_differ_in_the_correction_alone() -> None:
    planned = plan(STUDIES["mountaincar-pointmass"], full=False, seeds=2)
    equal = {(c.task.env, c.variant): j for c, j in planned.items() if c.settings == "equal"}
    own = {(c.task.env, c.variant): j for c, j in planned.items() if c.settings == "own"}
    env = "MountainCarContinuous-v0"
    # the same run serves both comparisons
    assert [job.name for job in equal[env, "averaging"]] == [job.name for job in own[env, "averaging"]]
    averaging, none = (settings_of(equal[env, variant][0]) for variant in ("averaging", "none"))
    changed = {key for key in none if none[key] != averaging.get(key, "missing")}
    assert changed == {"correction", "critic_epochs", "critic_learning_rate"}
    # the passes that train the critic are as many and as fast
    assert none["critic_epochs"] == averaging["correction_epochs"]
    assert none["critic_learning_rate"] == averaging["correction_learning_rate"]
    assert settings_of(own[env, "none"][0])["learning_rate"] != none["learning_rate"]


def test_time_limits_are_those_of_the_authors_programs() -> None:
    """The Gym tasks end at their limit; PointMass is bootstrapped there, and runs 2M steps."""
    for cell, jobs in plan(STUDIES["mountaincar-pointmass"], full=True, seeds=1).items():
        wrapper = settings_of(jobs[0]).get("env_wrapper")
        if cell.task.env == "avgcorr/PointMassEasy-v0":
            assert wrapper is None
            assert jobs[0].steps == 2_000_000
        else:
            assert "TruncationAsTermination" in str(wrapper)


def test_full_size_is_the_papers() -> None:
    sizes = {cell.task.env: (len(jobs), jobs[0].steps) for cell, jobs in plan(STUDIES["mujoco"], full=True).items()}
    assert set(sizes.values()) == {(10, 2_000_000)}
    smaller = {(cell.task.env, len(jobs), jobs[0].steps) for cell, jobs in plan(STUDIES["mujoco"], full=False).items()}
    assert ("HalfCheetah-v4", 5, 2_000_000) in smaller  # tasks need not have the same size
    assert ("Ant-v4", 5, 300_000) in smaller
    for name, seeds in (("dm-reacher", 30), ("ur5", 3), ("classic-control", 10)):
        assert {len(jobs) for jobs in plan(STUDIES[name], full=True).values()} == {seeds}


def test_borrowed_settings_are_the_variants_own_or_averagings() -> None:
    planned = plan(STUDIES["hyperparameter-transfer"], full=False, seeds=1)
    rates = {
        (cell.settings, cell.variant): settings_of(jobs[0])["learning_rate"]
        for cell, jobs in planned.items()
        if cell.task.env == "Reacher-v4" and cell.settings_of == "Ant-v4"
    }
    assert rates.pop(("own", "none")) == 0.0009
    assert set(rates.values()) == {0.0003}
    # what ends an episode is the task's, also with the settings of PointMass
    assert {"TruncationAsTermination" in str(settings_of(jobs[0])["env_wrapper"]) for jobs in planned.values()} == {True}


def test_judged_by_the_papers_claims() -> None:
    ur5 = study("ur5")
    planned = ur5.plan(Size(steps=1000))
    found = ur5.judge(Size(), planned, outcome_of(planned, LEVELS))
    assert [claim.verdict for claim in found.claims] == ["supported"] * 8
    assert "Smaller than the paper" in found.report
    assert found.data.keys() == {"ur5"}
    assert [picture.name for section in found.sections for picture in section.pictures] == ["ur5-own.png", "ur5-equal.png"]


def test_size_is_what_was_run_not_what_was_asked_for() -> None:
    ur5 = study("ur5")
    for size, words in ((Size(full=True, steps=1000), "Smaller than"), (Size(seeds=3, steps=150_000), "The paper’s size")):
        planned = ur5.plan(size)
        report = ur5.judge(size, planned, outcome_of(planned, LEVELS)).report
        assert words in report
        assert "Time limits count as termination" in report


def test_run_without_an_end_of_an_episode() -> None:
    nothing = Episodes(*(np.empty(0, dtype) for dtype in (int, float, float, int)), {g: np.empty(0) for g in GAMMAS})

    def judged(name: str) -> tuple[TrainingStudy, str, Outcome, int]:
        experiment = study(name)
        planned = experiment.plan(Size(seeds=3))
        outcome = outcome_of(planned, dict.fromkeys(LEVELS, -100.0))
        for job, result in outcome.results.items():
            if job.seed == 0:  # its only episode is still open
                outcome.results[job] = replace(result, episodes=nothing, open=replace(result.episodes))  # type: ignore
        found = experiment.judge(Size(), planned, outcome)
        return experiment, found.report, outcome, found.data[name]["seed"].nunique()

    _, _, outcome, seeds = judged("dm-reacher")
    assert not outcome.failed
    assert seeds == 3
    _, report, outcome, seeds = judged("ur5")  # where an episode lasts 4 s, and a run without an end is none
    assert all("no episode ended" in why for why in outcome.failed.values())
    assert seeds == 2
    assert "nan" not in report


def test_discounted_returns_are_those_of_the_other_studies_runs() -> None:
    def names(name: str) -> set[str]:
        return {job.name for jobs in plan(STUDIES[name], full=False).values() for job in jobs}

    assert names("discounted") <= names("classic-control") | names("mujoco") | names("mountaincar-pointmass")
    assert names("discounted") >= names("classic-control") | names("mujoco")
    discounted = study("discounted")
    planned = discounted.plan(Size(seeds=2))
    found = discounted.judge(Size(), planned, outcome_of(planned, {"none": 100.0, "power": 500.0, "averaging": 300.0}))
    frame = found.data["discounted"]
    assert set(frame["gamma"]) == set(GAMMAS)
    means = frame[frame["variant"] == "none"].groupby("gamma")["discounted"].mean()
    assert means[0.99] / means[0.995] == pytest.approx(0.99 / 0.995)
    # continuous mountain car is there twice, for either algorithm
    places = " ".join(claim.place for claim in found.claims)
    assert "MountainCarContinuous-v0 (BAC), γ = 0.993" in places
    assert "MountainCarContinuous-v0 (PPO), γ = 0.993" in places


def test_the_rest_is_judged_when_a_variant_failed() -> None:
    ur5 = study("ur5")
    planned = ur5.plan(Size())
    outcome = outcome_of(planned, {"none": 30.0, "averaging": 10.0}, failing="power")
    found = ur5.judge(Size(), planned, outcome)
    assert {claim.verdict for claim in found.claims} == {"contradicted"}
    assert len(found.claims) == 4


def test_best_of_the_borrowed_settings_counts() -> None:
    transfer = study("hyperparameter-transfer")
    planned = transfer.plan(Size())
    level = {0.0003: 1.0, 0.0009: 5.0}  # Ant's learning rate, and the other two's
    jobs = [job for group in planned.values() for job in group]
    outcome = Outcome({job: made_up(job, level[job.hyperparams["learning_rate"]]) for job in jobs})
    report = transfer.judge(Size(), planned, outcome).report
    rows = [line for line in report.splitlines() if line.startswith("| Walker2d-v4 | averaging")]
    assert len(rows) == 2  # with own and with equal settings
    assert not any("settings of Ant" in row for row in rows)


def test_only_some_tasks() -> None:
    mujoco = study("mujoco")
    size = Size(envs=("Ant-v4",))
    planned = mujoco.plan(size)
    found = mujoco.judge(size, planned, outcome_of(planned, LEVELS))
    assert {claim.place.partition(",")[0] for claim in found.claims} == {"Ant-v4"}
    with pytest.raises(UserError, match="'Ant-v4'"):
        mujoco.plan(Size(envs=("Ant-v3",)))


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_part_of_a_study_is_judged(data: st.DataObject) -> None:
    """Whichever runs there are, there is a page, and it does not call itself the paper's size."""
    ur5 = study("ur5")
    planned = ur5.plan(Size(full=True))
    outcome = outcome_of(planned, LEVELS)
    names = sorted({job.name for job in outcome.results})
    there = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    some = Outcome({job: result for job, result in outcome.results.items() if job.name in there})
    found = ur5.judge(Size(full=True), planned, some)
    assert "Smaller than the paper" in found.report
    assert set(found.data["ur5"]["run"]) == there
    assert "Smaller than the paper" not in ur5.judge(Size(full=True), planned, outcome).report


def test_goes_on_from_the_table_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose curves are in the table are not made again, and count; the run of two comparisons is in both."""
    ur5, made = study("ur5"), []

    def run_jobs(jobs: Sequence[Job], *_: object, **__: object) -> Outcome:
        made.append({job.name for job in jobs})
        return Outcome({job: made_up(job, LEVELS[job.label] + job.seed) for job in jobs})

    monkeypatch.setattr(experiment, "run_jobs", run_jobs)
    experiment.conduct(ur5, Size(seeds=2), tmp_path)
    whole = experiment.conduct(ur5, Size(seeds=4), tmp_path)
    assert len(made[0]) == len(made[1]) == 2 * 5  # averaging's run serves own and equal settings
    assert not made[0] & made[1]
    # as if all had been made at once
    at_once = experiment.conduct(ur5, Size(seeds=4), tmp_path / "elsewhere")
    assert whole.report == at_once.report
    # nothing is left to make, and the page is the same
    again = experiment.conduct(ur5, Size(seeds=4), tmp_path)
    assert made[-1] == set()
    assert again.report == whole.report
