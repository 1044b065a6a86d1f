"""Runs of a comparison: broken off and resumed, by several runners, with corrupt files, on Ray."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rl_zoo3.exp_manager
import torch as th
from conftest import ClockEnv

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs import jobs as jobs_module
from sb3_avgcorr.runs import training
from sb3_avgcorr.runs.jobs import (
    CHECKPOINT,
    LOG,
    PROGRESS,
    RESULT,
    Job,
    read_checkpoint,
    read_document,
    read_result,
    set_aside_corrupt,
    write_bytes,
    write_document,
)
from sb3_avgcorr.runs.runner import Display, run_jobs
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS, EpisodeLog, JobManager, Locked, Recorder, check_job, run_job

#: quick to train, whatever the machine
LIGHT = {"n_epochs": 1, "correction_epochs": 1}


def cartpole(seed: int = 0, steps: int = 1536, **kwargs: Any) -> Job:
    kwargs.setdefault("hyperparams", LIGHT)
    return Job("averaging_ppo", "CartPole-v1", seed, steps, **kwargs)


@pytest.fixture(autouse=True)
def _checkpoint_at_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")


class Stop(Exception):
    """Breaks a run off."""


def stop_after(monkeypatch: pytest.MonkeyPatch, *checkpoints: int) -> None:
    """Break runs off after these checkpoints, counted over all runs."""
    save, count = Recorder.save, iter(range(1, 10**6))

    def save_and_stop(self: Recorder) -> None:
        save(self)
        if next(count) in checkpoints:
            raise Stop

    monkeypatch.setattr(Recorder, "save", save_and_stop)


def run_through(job: Job, folder: Path) -> int:
    """Run again and again until it is done; returns how often it broke off."""
    for stops in range(10):
        try:
            run_job(job, folder)
            return stops
        except Stop:
            assert not (folder / job.name / RESULT).exists()
    raise AssertionError("never done")


def content(job: Job, folder: Path) -> bytes:
    return (folder / job.name / RESULT).read_bytes()


# One run


@pytest.mark.parametrize(
    "job",
    [
        cartpole(),  # 8 environments, the fast path, learning rates that fall
        Job("averaging_a2c", "CartPole-v1", 1, 320, eval_episodes=2),
        Job("averaging_bac", "MountainCarContinuous-v0", 0, 1300),  # VecNormalize of observations
        Job("averaging_ppo", "Pendulum-v1", 0, 1300, hyperparams={**LIGHT, "n_steps": 64, "normalize": True}),
        Job("averaging_ppo", "MountainCarContinuous-v0", 0, 64, hyperparams=LIGHT),  # gSDE, VecNormalize of rewards
        Job("averaging_ppo_lstm", "CartPole-v1", 0, 256, hyperparams={**LIGHT, "n_envs": 2, "n_steps": 24}),
        Job("power_ppo", "CartPole-v1", 0, 1024, hyperparams=LIGHT),
        Job("ppo", "CartPole-v1", 0, 1024, hyperparams={"n_epochs": 1}),
        Job("bac", "CartPole-v1", 0, 1024),
        Job("averaging_trpo", "CartPole-v1", 0, 1024, hyperparams={"n_steps": 128, "correction_epochs": 1}),
        Job("averaging_ppo_mask", "Taxi-v4", 0, 600, hyperparams={**LIGHT, "n_steps": 32, "n_envs": 2}),
    ],
    ids=lambda job: f"{job.algo}-{job.env}",
)
def test_broken_and_unbroken_runs_are_the_same(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "1e9")  # nor do checkpoints leave a trace
    run_job(job, tmp_path / "unbroken")
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")
    stop_after(monkeypatch, 1, 3)
    assert run_through(job, tmp_path / "broken") == 2
    assert (tmp_path / "broken" / job.name / LOG).read_text().count("Going on from step") == 2
    # every episode, and a digest of all parameters and of the optimiser's state
    assert content(job, tmp_path / "broken") == content(job, tmp_path / "unbroken")
    assert not (tmp_path / "broken" / job.name / CHECKPOINT).exists()


def test_a_run_is_what_rl_zoo_trains(tmp_path: Path) -> None:
    job = cartpole()
    run_job(job, tmp_path)
    check_job(job)
    made = JobManager(job, tmp_path).setup_experiment()
    assert made is not None
    made[0].learn(job.steps)
    result = read_result(job, tmp_path)
    assert result is not None
    assert result.parameters == training._parameters_digest(made[0])
    # ... and a digest that something else does not have
    assert result.parameters != training._parameters_digest(JobManager(job, tmp_path).setup_experiment()[0])  # type: ignore[index]


def test_episodes_by_hand(tmp_path: Path) -> None:
    # Rewards of 1: the return is the length, the discounted return a geometric sum, whatever VecNormalize makes of them.
    job = cartpole(steps=600, hyperparams={**LIGHT, "normalize": True, "gamma": 0.9}, eval_episodes=3)
    run_job(job, tmp_path)
    result = read_result(job, tmp_path)
    assert result is not None
    assert result.gamma == 0.9
    assert len(result.evaluation) == 3
    for episodes in (result.episodes, result.evaluation):
        np.testing.assert_array_equal(episodes.returns, episodes.length)
        for gamma, discounted in {0.9: episodes.discounted, **episodes.discounted_at}.items():
            np.testing.assert_allclose(discounted, (1 - gamma**episodes.length) / (1 - gamma))
        assert len(episodes.discounted_at) == 3
    assert (np.diff(result.episodes.step) >= 0).all()
    # 8 environments; none has lost a step but those of its open episode
    assert 0 < 768 - result.episodes.length.sum() <= 8 * 96
    assert result.settings["gamma"] == 0.9


def test_evaluation_without_geometric_ends(tmp_path: Path) -> None:
    wrapper = {"sb3_avgcorr.envs.wrappers.GeometricTermination": {"gamma": 0.5}}
    hyperparams = {**LIGHT, "env_wrapper": [wrapper]}
    job = Job("averaging_ppo", "avgcorr/TwoState-v0", 0, 200, hyperparams=hyperparams, eval_episodes=3)
    run_job(job, tmp_path)
    result = read_result(job, tmp_path)
    assert result is not None
    assert result.episodes.length.mean() < 4
    assert list(result.evaluation.length) == [20, 20, 20]


class Whimsical(ClockEnv):
    """An environment that is different each time, seed or not."""

    def _observation(self) -> np.ndarray:
        return np.full((1,), time.perf_counter(), dtype=np.float32)


@pytest.fixture
def whimsical() -> Iterator[str]:
    gym.register("Whimsical-v0", entry_point=Whimsical)
    yield "Whimsical-v0"
    del gym.registry["Whimsical-v0"]


def test_environment_that_does_not_repeat_itself(whimsical: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("averaging_ppo", whimsical, 0, 96, hyperparams={**LIGHT, "n_steps": 32, "batch_size": 32})
    stop_after(monkeypatch, 1)
    assert run_through(job, tmp_path) == 1
    home = tmp_path / job.name
    assert "did not repeat itself" in (home / LOG).read_text()
    assert (home / f"{CHECKPOINT}.not-used-1").exists()
    assert read_result(job, tmp_path) is not None


def test_name_of_a_job() -> None:
    job = Job("averaging_ppo", "sb3_avgcorr:avgcorr/TwoState-v0", 3, 100)
    assert "/" not in job.name
    assert ":" not in job.name
    assert job.name.startswith("averaging_ppo-avgcorr_TwoState_v0-3-")
    others = [
        Job("power_ppo", job.env, 3, 100),
        Job(job.algo, "avgcorr/TwoState-v0", 3, 100),
        Job(job.algo, job.env, 4, 100),
        Job(job.algo, job.env, 3, 101),
        Job(job.algo, job.env, 3, 100, paper=True),
        Job(job.algo, job.env, 3, 100, hyperparams={"gamma": 0.5}),
        Job(job.algo, job.env, 3, 100, env_kwargs={"gamma": 0.5}),
        Job(job.algo, job.env, 3, 100, eval_episodes=1),
    ]
    assert len({job.name, *(other.name for other in others)}) == 1 + len(others)
    # the same run under another label, and hyperparameters in another order
    assert Job(job.algo, job.env, 3, 100, label="ours").name == job.name
    a, b = (Job(job.algo, job.env, 3, 100, hyperparams=h) for h in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert a.name == b.name
    assert hash(a) == hash(b)
    assert job.label == "averaging_ppo"


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"seed": -1}, {"steps": 1.5}, {"eval_episodes": -1}])
def test_wrong_jobs(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} is {wrong[name]}; it must be a whole number"):
        Job(**{"algo": "ppo", "env": "CartPole-v1", "seed": 0, "steps": 10, **wrong})
    with pytest.raises(ValueError, match="must be plain values"):
        _ = Job("ppo", "CartPole-v1", 0, 10, hyperparams={"policy": object()}).name


def test_a_class_among_the_settings(tmp_path: Path) -> None:
    job = cartpole(0, 256, hyperparams={**LIGHT, "policy_kwargs": {"activation_fn": th.nn.ReLU}})
    for _ in range(2):  # trained, then read again and compared with the files
        assert not run_jobs([job], tmp_path, progress=False).failed
    result = read_result(job, tmp_path)
    assert result is not None
    assert "ReLU" in str(result.settings["policy_kwargs"])


@pytest.mark.parametrize("geometric", [False, True])
def test_evaluation_is_on_the_task_as_it_was_asked_for(geometric: bool, tmp_path: Path) -> None:
    wrapper = {"sb3_avgcorr.envs.wrappers.GeometricTermination": {"gamma": 0.9}}
    hyperparams = {**LIGHT, "n_steps": 64, "batch_size": 64, "env_wrapper": [wrapper] if geometric else []}
    settings = {"env_kwargs": {"length": 30, "strength": 1.0}, "hyperparams": hyperparams, "eval_episodes": 4}
    job = Job("averaging_ppo", "avgcorr/LongTail-v0", 0, 512, **settings)  # type: ignore[arg-type]
    run_job(job, tmp_path)
    result = read_result(job, tmp_path)
    assert result is not None
    np.testing.assert_array_equal(result.evaluation.length, 30)
    assert (result.episodes.length < 30).any() == geometric
    # 25 late rewards of 1 or -1 beside 5 early ones: an even sum; the default strength of 0.2 would leave a fraction
    np.testing.assert_allclose(result.evaluation.returns % 2.0, 0.0)


def test_open_episodes_by_hand() -> None:
    log = EpisodeLog(2, 0.5)
    log.add(np.array([1.0, 2.0]), np.array([False, True]), 2)
    log.add(np.array([4.0, 8.0]), np.array([False, False]), 4)
    assert log.columns["return"] == [2.0]
    still = log.open_episodes(4)
    assert still["step"] == [4, 4]
    assert still["length"] == [2, 1]
    assert still["return"] == [5.0, 8.0]
    assert still["discounted"] == [3.0, 8.0]
    assert still["discounted_0.99"] == [1.0 + 0.99 * 4.0, 8.0]
    log.add(np.array([0.0, 0.0]), np.array([True, True]), 6)
    assert log.open_episodes(6)["step"] == []  # of an episode that has not begun nothing is known


def test_open_episodes_of_a_run(tmp_path: Path) -> None:
    job = cartpole(0, 256)
    run_job(job, tmp_path)
    result = read_result(job, tmp_path)
    assert result is not None
    # 8 environments: every step belongs to an episode that ended or to one that is open
    assert result.episodes.length.sum() + result.open.length.sum() == 256
    joined = result.with_open_episodes().episodes
    assert len(joined) == len(result.episodes) + len(result.open)
    assert joined.returns.sum() == 256
    assert len(joined.discounted_at[0.99]) == len(joined)


def test_unknown_names() -> None:
    with pytest.raises(UserError, match="The package ''"):
        check_job(Job("ppo", ":CartPole-v1", 0, 10))
    with pytest.raises(UserError, match=r"The package '\.x'"):
        check_job(Job("ppo", ".x:CartPole-v1", 0, 10))
    with pytest.raises(UserError, match="did you mean 'averaging_ppo'"):
        check_job(Job("averagin_ppo", "CartPole-v1", 0, 10))
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        check_job(Job("ppo", "CartPol-v1", 0, 10))
    with pytest.raises(UserError, match="'no_such_package'"):
        check_job(Job("ppo", "no_such_package:CartPole-v1", 0, 10))
    with pytest.raises(UserError, match="paper has no settings"):
        check_job(Job("averaging_a2c", "CartPole-v1", 0, 10, paper=True))


# Many runs


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "changed":  # still valid JSON
        path.write_bytes(whole.replace(b'"return": [1', b'"return": [2', 1))
        assert path.read_bytes() != whole
    else:
        path.write_text(json.dumps({"something": "else"}))


def test_corrupt_results_are_reported_set_aside_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = cartpole(0, 256)
    bad = {how: cartpole(seed, 256) for seed, how in enumerate(("half", "empty", "changed", "foreign"), start=1)}
    jobs = [good, *bad.values()]
    assert not run_jobs(jobs, tmp_path, progress=False).failed
    expected = {job: content(job, tmp_path) for job in jobs}
    untouched = (tmp_path / good.name / RESULT).stat().st_mtime_ns
    for how, job in bad.items():
        spoil(tmp_path / job.name / RESULT, how)
    again = run_jobs(jobs, tmp_path, progress=False)
    said = capsys.readouterr().err
    assert set(again.results) == set(jobs)
    for job in bad.values():
        assert content(job, tmp_path) == expected[job]
        assert (tmp_path / job.name / f"{RESULT}.corrupt-1").exists()
        assert f"{tmp_path / job.name / RESULT} is corrupt" in said
    assert said.count(f"{RESULT}.corrupt-1") == len(bad)
    assert good.name not in said
    # what was done was not done again
    assert (tmp_path / good.name / RESULT).stat().st_mtime_ns == untouched


def test_corrupt_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    job = cartpole(0, 768)
    run_job(job, tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            run_job(job, tmp_path)
    path = tmp_path / job.name / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-5])
    (tmp_path / job.name / f"{RESULT}.part").write_text("half")  # of a process that died while writing
    assert not run_jobs([job], tmp_path, progress=False).failed
    assert f"{path} is corrupt" in capsys.readouterr().err
    assert path.with_name(f"{CHECKPOINT}.corrupt-1").exists()
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def broken_off(job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    :return: the checkpoint of a run that was broken off
    """
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            run_job(job, folder)
    return folder / job.name / CHECKPOINT


def test_checkpoint_of_other_settings_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cartpole(0, 768)
    run_job(job, tmp_path / "unbroken")
    path = broken_off(job, tmp_path, monkeypatch)
    checkpoint = read_checkpoint(path)
    checkpoint["settings"] = {**checkpoint["settings"], "learning_rate": 0.5}
    pickled = pickle.dumps(checkpoint)
    write_bytes(path, hashlib.sha256(pickled).digest() + pickled)
    run_job(job, tmp_path)
    assert path.with_name(f"{CHECKPOINT}.not-used-1").exists()
    assert "The settings have changed" in (tmp_path / job.name / LOG).read_text()
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def test_sound_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, say: their digests are right, their content is not."""
    job = cartpole(0, 768)
    path = broken_off(job, tmp_path, monkeypatch)
    for pickled, said in (
        (b"cno_such_module\nThing\n.", "cannot be read"),
        (pickle.dumps({"model": b""}), "it lacks actions"),
    ):
        write_bytes(path, hashlib.sha256(pickled).digest() + pickled)
        (note,) = set_aside_corrupt(path.parent)
        assert str(path) in note
        assert said in note
        assert not path.exists()
    run_job(job, tmp_path)
    result = path.with_name(RESULT)
    document = read_document(result)
    del document["episodes"]["discounted_0.99"]
    write_document(result, document)
    (note,) = set_aside_corrupt(path.parent)
    assert "discounted_0.99" in note
    assert not result.exists()


def test_file_that_another_runner_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> None:
        path.unlink()
        raise FileNotFoundError(path)

    (tmp_path / CHECKPOINT).write_bytes(b"x")
    monkeypatch.setattr(jobs_module, "read_checkpoint", gone)
    assert set_aside_corrupt(tmp_path) == []


def test_bar_counts_what_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a session that was interrupted, also the steps of broken runs whose turn has not come."""
    jobs = [cartpole(seed, 1000) for seed in range(3)]
    for job, steps in zip(jobs, (100, 500), strict=False):
        (tmp_path / job.name).mkdir()
        (tmp_path / job.name / PROGRESS).write_text(str(steps))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display = Display(jobs, tmp_path, on=True)
    assert display._bar.n == 600
    (tmp_path / jobs[0].name / PROGRESS).write_text("140")
    display.show(jobs[:1])
    assert display._bar.n == 640
    display.ended(jobs[0], None)
    display.show(jobs[1:])
    assert display._bar.n == 1500
    display.close()


def test_failures_do_not_keep_others_from_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    works = cartpole(0, 256)
    fails = cartpole(0, 256, hyperparams={**LIGHT, "gamma": 1.5})
    unknown = Job("averaging_ppo", "Nowhere-v0", 0, 256)
    outcome = run_jobs([fails, works, unknown], tmp_path, workers=1)
    assert set(outcome.results) == {works}
    assert set(outcome.failed) == {fails, unknown}
    assert "gamma" in outcome.failed[fails]
    assert "1.5" in outcome.failed[fails]
    assert "There is no environment 'Nowhere-v0'" in outcome.failed[unknown]
    said = capsys.readouterr().err
    assert "averaging_ppo on Nowhere-v0, seed 0 failed" in said
    assert "3/3 runs" in said or "2/3 runs" in said


def children_at(job: Job) -> list[int]:
    """Processes of ours whose log is the job's: those that are at it."""
    found = []
    for process in multiprocessing.active_children():
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/1")
        except OSError:
            continue
        if Path(target).parent.name == job.name and process.pid is not None:
            found.append(process.pid)
    return found


def when(condition: Callable[[], Any], action: Callable[[], None], seconds: float = 120.0) -> threading.Thread:
    """Do something in a thread once a condition holds."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                action()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_process_is_reported_and_resumed_by_the_next_runner(tmp_path: Path) -> None:
    job, other = cartpole(0, 12288), cartpole(1, 256)
    checkpoint = tmp_path / job.name / CHECKPOINT
    killer = when(lambda: checkpoint.exists() and children_at(job), lambda: os.kill(children_at(job)[0], signal.SIGKILL))
    outcome = run_jobs([job, other], tmp_path, workers=2, progress=False)
    killer.join()
    assert set(outcome.failed) == {job}
    assert "SIGKILL" in outcome.failed[job]
    assert set(outcome.results) == {other}
    assert not run_jobs([job, other], tmp_path, progress=False).failed
    assert "Going on from step" in (tmp_path / job.name / LOG).read_text()
    run_job(job, tmp_path / "unbroken")
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def test_one_process_a_job(tmp_path: Path) -> None:
    job = cartpole(0, 256)
    home = tmp_path / job.name
    home.mkdir()
    lock = training.filelock.FileLock(home / "lock")
    with lock, pytest.raises(Locked, match=job.name):
        run_job(job, tmp_path)
    run_job(job, tmp_path)  # released


SCRIPT = """
import sys
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import run_jobs

if __name__ == "__main__":
    light = {"n_epochs": 1, "correction_epochs": 1}
    jobs = [Job("averaging_ppo", "CartPole-v1", seed, 1536, hyperparams=light) for seed in range(3)]
    outcome = run_jobs(jobs, sys.argv[1], workers=1, progress=False)
    print(len(outcome.results), len(outcome.failed))
"""


def test_two_runners_on_one_folder(tmp_path: Path) -> None:
    script = tmp_path / "runner.py"
    script.write_text(SCRIPT)
    runs = tmp_path / "runs"
    jobs = [cartpole(seed, 1536) for seed in range(3)]
    other = subprocess.Popen([sys.executable, str(script), str(runs)], text=True, stdout=subprocess.PIPE)
    try:
        # the other one has begun
        end = time.monotonic() + 120
        while not (runs / jobs[0].name / CHECKPOINT).exists() and time.monotonic() < end:
            assert other.poll() is None
            time.sleep(0.02)
        outcome = run_jobs(jobs, runs, workers=1, progress=False)
        said, _ = other.communicate(timeout=120)
    finally:
        other.kill()
    assert said.split() == ["3", "0"]
    assert len(outcome.results) == 3
    for job in jobs:  # each was trained once, by one of them
        assert (runs / job.name / LOG).read_text().count("Loading hyperparameters") == 1
        run_job(job, tmp_path / "alone")
        assert content(job, runs) == content(job, tmp_path / "alone")


def test_nothing_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cartpole(0, 256)
    same = cartpole(0, 256, label="the same under another name")
    outcome = run_jobs([job, same], tmp_path, progress=False)
    assert set(outcome.results) == {job, same}
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr("sb3_avgcorr.runs.runner.LocalPool", None)  # not needed any more
    assert set(run_jobs([job, same], tmp_path, progress=False).results) == {job, same}
    with pytest.raises(ValueError, match="workers is 0"):
        run_jobs([job], tmp_path, workers=0)


def test_settings_that_changed_since_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # an entry of which RL Zoo changes a part when it reads it
    bac = Job("averaging_bac", "MountainCarContinuous-v0", 0, 256)
    jobs = [cartpole(0, 256), cartpole(1, 256), bac]
    for job in jobs:
        run_job(job, tmp_path)
    run_jobs(jobs, tmp_path)
    assert capsys.readouterr().err == ""
    own = rl_zoo3.exp_manager.ExperimentManager.read_hyperparameters

    def changed(self: Any) -> Any:
        return tuple({**settings, "ent_coef": 0.125} for settings in own(self))

    monkeypatch.setattr(rl_zoo3.exp_manager.ExperimentManager, "read_hyperparameters", changed)
    run_jobs(jobs, tmp_path)
    said = capsys.readouterr().err
    for job in jobs:
        assert f"{tmp_path / job.name} was made with another ent_coef than the hyperparameter file has now" in said


# Ray


def test_ray_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'sb3-avgcorr\[ray\]'"):
        run_jobs([cartpole()], tmp_path, ray="")


def ray_workers(name: str) -> list[int]:
    """Ray workers under this process that are at a task of that name."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{name}"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_ray_gives_the_same_numbers_also_when_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    jobs = [cartpole(0, 12288), cartpole(1, 512)]
    fails = cartpole(2, 512, hyperparams={**LIGHT, "gamma": 1.5})
    checkpoint = tmp_path / "ray" / jobs[0].name / CHECKPOINT
    killed = []

    def kill() -> None:
        victims = ray_workers("_ray_task")
        killed.extend(victims)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    listening: set[str] = set()

    def listen() -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                sockets = process.net_connections("inet")
                listening.update(s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN)

    psutil = pytest.importorskip("psutil")
    killer = when(checkpoint.exists, lambda: (listen(), kill()))  # type: ignore[arg-type, func-returns-value]
    outcome = run_jobs([*jobs, fails], tmp_path / "ray", workers=2, ray="", progress=False)
    killer.join()
    assert killed
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}  # reachable from nowhere else
    assert set(outcome.results) == set(jobs)
    assert "gamma" in outcome.failed[fails]
    assert "Going on from step" in (tmp_path / "ray" / jobs[0].name / LOG).read_text()
    for job in jobs:
        run_job(job, tmp_path / "local")
        assert content(job, tmp_path / "ray") == content(job, tmp_path / "local")


def test_ray_results_come_to_the_driver_where_the_folder_is_not_shared(tmp_path: Path) -> None:
    """What a worker on another machine returns, written by the driver."""
    from sb3_avgcorr.runs.runner import RayPool, _ray_task

    job = cartpole(0, 256)
    locked, problem, document = _ray_task(job, str(tmp_path / "there"), False)
    assert (locked, problem) == (False, None)

    class Ray:
        class exceptions:
            RayError = RuntimeError

        @staticmethod
        def get(handle: Any) -> Any:
            return handle

    pool = object.__new__(RayPool)
    pool.folder, pool._ray = tmp_path / "here", Ray
    assert pool.end(job, (locked, problem, document)) is None
    assert content(job, tmp_path / "here") == content(job, tmp_path / "there")
    with pytest.raises(Locked):
        pool.end(job, (True, None, None))


def test_random_streams_are_those_of_the_unbroken_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something else has drawn in between."""
    job = cartpole()
    run_job(job, tmp_path / "unbroken")
    stop_after(monkeypatch, 2)
    with pytest.raises(Stop):
        run_job(job, tmp_path)
    random.random()
    np.random.random(10)  # noqa: NPY002
    run_job(job, tmp_path)
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")
