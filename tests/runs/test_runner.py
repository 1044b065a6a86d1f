"""Many runs: by several runners, with failures, and what an observer is told."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rl_zoo3.exp_manager
from run_helpers import LIGHT, Heard, cartpole, content

from sb3_avgcorr.runs.files import CHECKPOINT, LOG
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.run import run_job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS


@pytest.fixture(autouse=True)
def _checkpoint_at_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")


def test_failures_do_not_keep_others_from_running(tmp_path: Path) -> None:
    works = cartpole(0, 256)
    fails = cartpole(0, 256, hyperparams={**LIGHT, "gamma": 1.5})
    unknown = Job("averaging_ppo", "Nowhere-v0", 0, 256)
    heard = Heard()
    outcome = run_jobs([fails, works, unknown], tmp_path, workers=1, observer=heard)
    assert set(outcome.results) == {works}
    assert set(outcome.failed) == {fails, unknown}
    assert "gamma" in outcome.failed[fails]
    assert "1.5" in outcome.failed[fails]
    assert "There is no environment 'Nowhere-v0'" in outcome.failed[unknown]
    assert unknown.title == "averaging_ppo on Nowhere-v0, seed 0"
    told = dict(heard.ended)
    assert told[works.name] is None
    assert told.keys() == {works.name, fails.name, unknown.name}
    assert heard.closed == 1


SCRIPT = """
import sys
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import run_jobs

if __name__ == "__main__":
    light = {"n_epochs": 1, "correction_epochs": 1}
    jobs = [Job("averaging_ppo", "CartPole-v1", seed, 1536, hyperparams=light) for seed in range(3)]
    outcome = run_jobs(jobs, sys.argv[1], workers=1)
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
        end = time.monotonic() + 600
        while not (runs / jobs[0].name / CHECKPOINT).exists() and time.monotonic() < end:
            assert other.poll() is None
            time.sleep(0.02)
        outcome = run_jobs(jobs, runs, workers=1)
        said, _ = other.communicate(timeout=600)
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
    outcome = run_jobs([job, same], tmp_path)
    assert set(outcome.results) == {job, same}
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr("sb3_avgcorr.runs.runner.LocalPool", None)  # not needed any more
    assert set(run_jobs([job, same], tmp_path).results) == {job, same}
    with pytest.raises(ValueError, match="workers is 0"):
        run_jobs([job], tmp_path, workers=0)


def test_settings_that_changed_since_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an entry of which RL Zoo changes a part when it reads it
    bac = Job("averaging_bac", "MountainCarContinuous-v0", 0, 256)
    jobs = [cartpole(0, 256), cartpole(1, 256), bac]
    for job in jobs:
        run_job(job, tmp_path)
    heard = Heard()
    run_jobs(jobs, tmp_path, observer=heard)
    assert heard.notes == []
    own = rl_zoo3.exp_manager.ExperimentManager.read_hyperparameters

    def changed(self: Any) -> Any:
        return tuple({**settings, "ent_coef": 0.125} for settings in own(self))

    monkeypatch.setattr(rl_zoo3.exp_manager.ExperimentManager, "read_hyperparameters", changed)
    run_jobs(jobs, tmp_path, observer=heard)
    said = "\n".join(heard.notes)
    for job in jobs:
        assert f"{tmp_path / job.name} was made with another ent_coef than the hyperparameter file has now" in said
