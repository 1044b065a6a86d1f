"""Our own studies: what they train, on which settings, and what they make of it."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from made_up_results import outcome_of
from stable_baselines3 import PPO

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.runs.files import RESULT, read_document, write_document
from sb3_avgcorr.runs.manager import settings_of
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.settings import variant
from sb3_avgcorr.studies import ring
from sb3_avgcorr.studies.benchmark import BOX2D_SB3, MUJOCO_SB3
from sb3_avgcorr.studies.experiment import Size, conduct
from sb3_avgcorr.studies.head_only import HEAD_ONLY
from sb3_avgcorr.studies.long_tail import LongTail, job_of
from sb3_avgcorr.studies.ring import Ring
from sb3_avgcorr.studies.safety import SAFETY
from sb3_avgcorr.studies.variants import VariantStudy, repeated

OURS = [MUJOCO_SB3, BOX2D_SB3, SAFETY, HEAD_ONLY]


@pytest.mark.parametrize("study", OURS, ids=lambda study: study.name)
def test_variants_differ_in_the_correction_alone(study: VariantStudy) -> None:
    about = {"correction", "correction_strength", "critic_epochs", "critic_learning_rate"}
    for task in study.tasks:
        jobs = {name: study.plan(Size(seeds=1, envs=(task.env,)))[task.env, name][0] for name in study.variants}
        settings = {name: settings_of(job) for name, job in jobs.items()}
        common = [{k: v for k, v in entry.items() if k not in about} for entry in settings.values()]
        assert all(entry == common[0] for entry in common)
        assert settings["none"]["correction"] is None
        for name, strength in {"averaging": 1.0, "auto": "auto"}.items():
            assert name not in settings or settings[name]["correction_strength"] == strength


def test_sizes() -> None:
    full = MUJOCO_SB3.plan(Size(full=True))
    assert {(len(jobs), jobs[0].steps) for jobs in full.values()} == {(10, 1_000_000)}
    assert len(full) == 5 * 4
    safety = {env: jobs[0].steps for (env, _), jobs in SAFETY.plan(Size(full=True)).items()}
    assert safety["HalfCheetah-v5"] == 300_000
    assert safety["CartPole-v1"] == 50_000
    assert max(jobs[0].steps for jobs in SAFETY.plan(Size()).values()) <= 30_000


def test_safety_has_sb3s_defaults() -> None:
    settings = settings_of(SAFETY.plan(Size())["HalfCheetah-v5", "none"][0])
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    for name in ("batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "learning_rate"):
        assert settings[name] == getattr(model, name)
    assert settings["clip_range"] == model.clip_range(1.0)
    assert settings["n_envs"] * settings["n_steps"] == model.n_steps
    assert settings["policy_kwargs"] == {}


def test_critic_without_a_head_is_trained_as_long() -> None:
    """As under equal settings everywhere."""
    _, options = variant("ppo", "MountainCarContinuous-v0", paper=True)
    assert HEAD_ONLY.variants["none"] == options
    head = settings_of(HEAD_ONLY.plan(Size(seeds=1))["MountainCarContinuous-v0", "head"][0])
    assert head["correction_network"] == "shared"
    assert head["correction_strength"] == 0.0
    assert head.get("correction", "averaging") == "averaging"


def test_judged_by_both_returns() -> None:
    planned = SAFETY.plan(Size())
    for level, verdict in ((50.0, "contradicted"), (99.0, "supported")):
        found = SAFETY.judge(Size(), planned, outcome_of(planned, {"none": 100.0, "auto": level}))
        assert len(found.claims) == 2 * 7 * 2
        texts = ("auto is not significantly worse than PPO", "auto's mean is within 5 % of PPO's or above")
        assert {(claim.text, claim.verdict) for claim in found.claims} == {(text, verdict) for text in texts}
    together = found.sections[0]
    rows = {row[0]: row for row in together.tables[0].rows}
    assert rows.keys() == {"none", "auto"}
    assert {picture.name for section in found.sections for picture in section.pictures} == {
        "safety-profile.png",
        "safety-return.png",
        "safety-discounted.png",
    }
    scores = found.data["safety"]
    assert set(scores["measure"]) == {"area", "final", "evaluation"}
    assert len(scores) == 7 * 2 * 3 * 2 * 3


def test_runs_that_are_the_baselines() -> None:
    curves = {
        ("A", 0, "none"): [1.0, 2.0],
        ("A", 0, "auto"): [1.0, 2.0],
        ("A", 0, "power"): [1.0, 3.0],  # ends elsewhere
        ("A", 1, "none"): [2.0, 2.0],
        ("A", 1, "auto"): [1.0, 2.0],  # the end alone is the same
        ("A", 2, "auto"): [1.0, 2.0],  # nothing to compare with
        ("B", 0, "none"): [1.0, 2.0, 3.0],
        ("B", 0, "auto"): [1.0, 2.0, 3.0],
    }
    rows = [
        {"task": task, "seed": seed, "variant": variant, "return": x} for (task, seed, variant), c in curves.items() for x in c
    ]
    assert repeated(pd.DataFrame(rows), "none") == {("A", "auto"): (1, 2), ("A", "power"): (0, 1), ("B", "auto"): (1, 1)}
    planned = SAFETY.plan(Size())
    found = SAFETY.judge(Size(), planned, outcome_of(planned, {"none": 100.0, "auto": 100.0}))
    assert "whole learning curve of none's run of the same seed: auto" in found.report
    assert "| 0: the same runs |" in found.report
    apart = SAFETY.judge(Size(), planned, outcome_of(planned, {"none": 100.0, "auto": 101.0})).report
    assert "the same runs" not in apart
    assert "cannot tell |" in apart or "better |" in apart


def test_tasks_together() -> None:
    """Only those on which all variants were run and the baseline learned something."""
    envs = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1")
    planned = SAFETY.plan(Size(envs=envs))
    found = SAFETY.judge(Size(envs=envs), planned, outcome_of(planned, {"none": 100.0, "auto": 90.0}))
    scores, learning = (found.data[name] for name in SAFETY.tables)
    learning = learning.assign(**{"return": np.where(learning["step"] == learning["step"].min(), 0.0, learning["return"])})
    together = SAFETY._together(learning, scores)
    assert together is not None
    assert "Without" not in together.text
    fell = learning.assign(**{"return": learning["return"].where(learning["task"] != "Pendulum-v1", 200.0)})
    together = SAFETY._together(fell, scores)
    assert together is not None
    assert "Without Pendulum-v1, where none learned nothing" in together.text
    assert SAFETY._together(learning, scores[scores["variant"] != "none"]) is None
    assert SAFETY._together(learning, scores[scores["task"] == "Acrobot-v1"]) is None


def test_the_same_end_is_not_the_same_run() -> None:
    envs = ("CartPole-v1",)
    planned = SAFETY.plan(Size(envs=envs))
    found = SAFETY.judge(Size(envs=envs), planned, outcome_of(planned, {"none": 100.0, "auto": 100.0}))
    scores, learning = (found.data[name] for name in SAFETY.tables)
    assert (
        SAFETY._section("return", "return", learning, scores, {("CartPole-v1", "auto")}).tables[0].rows[1][-1].startswith("0:")
    )
    assert "same" not in SAFETY._section("return", "return", learning, scores, set()).tables[0].rows[1][-1]


def test_a_run_that_never_corrected_is_not_made_twice(tmp_path: Path) -> None:
    """Within so few rollouts nothing is told, so PPO's runs are auto's; made on their own they are the same."""
    size = Size(seeds=2, steps=1024, envs=("CartPole-v1",))
    found = conduct(SAFETY, size, tmp_path / "spared", workers=2)
    assert len(list((tmp_path / "spared" / "runs").iterdir())) == 2
    plan = SAFETY.plan(size)
    run_jobs([job for jobs in plan.values() for job in jobs], tmp_path / "all" / "runs", workers=2)
    every = conduct(SAFETY, size, tmp_path / "all", workers=2)
    assert len(list((tmp_path / "all" / "runs").iterdir())) == 4
    for name in SAFETY.tables:
        assert len(found.data[name]) > 0
        pd.testing.assert_frame_equal(found.data[name], every.data[name])


def test_a_run_that_was_corrected_has_no_twin(tmp_path: Path) -> None:
    """What a run says of itself decides: if it was corrected, the other one is made."""
    size = Size(seeds=1, steps=1024, envs=("CartPole-v1",))
    (auto,) = SAFETY.plan(size)["CartPole-v1", "auto"]
    run_jobs([auto], tmp_path / "runs", workers=1)
    path = tmp_path / "runs" / auto.name / RESULT
    document = read_document(path)
    assert document["strongest"] == 0.0
    write_document(path, {**document, "strongest": 0.5})
    conduct(SAFETY, size, tmp_path, workers=1)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_small_benchmark_end_to_end(tmp_path: Path) -> None:
    found = conduct(SAFETY, Size(seeds=2, steps=512, envs=("CartPole-v1", "Acrobot-v1")), tmp_path, workers=2)
    # an episode of Acrobot takes 500 steps, so that none ends in 16 environments
    assert len(found.failed) == 4
    assert all("no episode ended" in line for line in found.failed)
    assert {claim.place.partition(",")[0] for claim in found.claims} == {"CartPole-v1"}
    assert (tmp_path / "safety.md").exists()


def test_goes_on_from_the_tables_of_another_machine(tmp_path: Path) -> None:
    """Two seeds here, without their runs a third one there: the tables are those of three seeds in one go."""
    envs = ("CartPole-v1",)
    for seeds, runs in ((2, "here"), (3, "there")):
        found = conduct(SAFETY, Size(seeds=seeds, steps=512, envs=envs), tmp_path / "two", runs=tmp_path / runs, workers=2)
    assert len(list((tmp_path / "there").iterdir())) == 1  # the third seed of auto, which within so few steps is PPO
    whole = conduct(SAFETY, Size(seeds=3, steps=512, envs=envs), tmp_path / "one", runs=tmp_path / "all", workers=2)
    assert found.report == whole.report
    for table in SAFETY.tables:
        one, two = (
            pd.read_csv(tmp_path / name / f"{table}.csv").sort_values(["run"], kind="stable") for name in ("one", "two")
        )
        pd.testing.assert_frame_equal(one.reset_index(drop=True), two.reset_index(drop=True))
    # a smaller command leaves the tables whole
    conduct(SAFETY, Size(seeds=1, steps=512, envs=envs), tmp_path / "two", runs=tmp_path / "there", workers=2)
    assert pd.read_csv(tmp_path / "two" / "safety.csv")["seed"].nunique() == 3


def test_page_of_a_benchmark_that_is_not_whole(tmp_path: Path) -> None:
    """Two seeds of one task, auto alone, whose twins PPO's runs are; of the other task nothing."""
    envs = ("CartPole-v1", "Acrobot-v1")
    size = Size(seeds=3, steps=1024, envs=envs)
    run_jobs(SAFETY.plan(size)["CartPole-v1", "auto"][:2], tmp_path / "runs", workers=2)
    found = conduct(SAFETY, size, tmp_path, so_far=True)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "CartPole-v1 2 of 3 seeds of 1,024 steps; Acrobot-v1 0 of 3 seeds" in found.report
    assert "(4 of 12 runs so far)" in found.report
    whole = conduct(SAFETY, Size(seeds=2, steps=1024, envs=envs[:1]), tmp_path / "two", runs=tmp_path / "runs", workers=2)
    for name in SAFETY.tables:
        pd.testing.assert_frame_equal(found.data[name], whole.data[name])


# The long tail


def test_rivals_on_the_long_tail() -> None:
    jobs = {name: job_of("avgcorr/LongTail-v0", 0.2, name, 0) for name in ("averaging", "auto", "geometric", "cut", "none")}
    settings = {name: settings_of(job) for name, job in jobs.items()}
    assert settings["auto"]["correction_strength"] == "auto"
    assert settings["averaging"]["correction_strength"] == settings["cut"]["correction_strength"] == 1.0
    assert settings["cut"]["env_wrapper"] == [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 30}}]  # γ = 0.9
    assert settings["geometric"]["correction"] is None
    assert jobs["cut"].eval_without == ("TimeLimit",)


def test_long_tail_judged() -> None:
    study = LongTail({"avgcorr/LongTail-v0": (0.0, 0.5)})
    planned = study.plan(Size())
    levels = {"none": 10.0, "power": 30.0, "averaging": 31.0, "auto": 31.0, "geometric": 30.5, "cut": 40.0}
    found = study.judge(Size(), planned, outcome_of(planned, levels))
    verdicts = {claim.text: claim.verdict for claim in found.claims if claim.place.endswith("0.5")}
    assert verdicts["averaging has the higher discounted return than PPO"] == "supported"
    assert verdicts["auto is not significantly worse than averaging"] == "supported"
    assert verdicts["averaging on cut episodes has the higher discounted return than averaging"] == "supported"
    assert len(found.data["long-tail"]) == 2 * 6 * 3


def test_long_tail_runs(tmp_path: Path) -> None:
    """The real thing, small: every variant is evaluated on the task, whose episodes have their full length."""
    study = LongTail({"avgcorr/LongTail-v0": (0.2,)})
    found = conduct(study, Size(seeds=1, steps=2000), tmp_path, workers=2)
    assert found.failed == []
    frame = found.data["long-tail"]
    assert len(frame) == 6
    assert (frame["return"].abs() > 0).all()


# The ring


def test_what_the_ring_wants() -> None:
    """By hand: the first quarter pays for action 1 what the discounted return counts most."""
    register_envs()
    model = PPO("MultiInputPolicy", gym.make("avgcorr/Ring-v0", laps=2), gamma=0.8, n_steps=64, seed=0, device="cpu")
    found = ring.probe(model)
    signs = np.tile(np.repeat([1.0, -0.6], [3, 9]), 2)
    assert found["best"] == pytest.approx(float(signs @ 0.8 ** np.arange(24)))
    assert 0.0 < found["wanted_action"] < 1.0
    assert found["discounted"] < found["best"]


def test_ring_runs_and_is_judged(tmp_path: Path) -> None:
    found = conduct(Ring(laps=(1, 2)), Size(seeds=2, steps=1920), tmp_path, workers=2)
    assert found.failed == []
    frame = found.data["ring"]
    assert len(frame) == 2 * len(ring.VARIANTS) * 2
    assert (frame["discounted"] <= frame["best"] + 1e-9).all()
    assert {claim.place for claim in found.claims} == {"2 laps", "2 laps against 1"}
    assert {path.name for path in tmp_path.glob("ring*.png")} == {"ring-discounted.png", "ring-wanted_action.png"}


def test_auto_and_full_strength_are_other_runs() -> None:
    planned = Ring().plan(Size(seeds=1))
    names = [jobs[0].name for jobs in planned.values()]
    assert len(set(names)) == len(names) == 4 * 5
