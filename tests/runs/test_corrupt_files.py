"""Files of a run that are corrupt, half-written or of another version."""

import hashlib
import json
import pickle
from pathlib import Path

import pytest
from run_helpers import LIGHT, Heard, Stop, broken_off, cartpole, content, result_of, stop_after

from sb3_avgcorr.runs import results
from sb3_avgcorr.runs.files import (
    CHECKPOINT,
    LOG,
    RESULT,
    read_checkpoint,
    read_document,
    write_bytes,
    write_checkpoint,
    write_document,
)
from sb3_avgcorr.runs.results import set_aside_corrupt
from sb3_avgcorr.runs.run import run_job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS


@pytest.fixture(autouse=True)
def _checkpoint_at_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")


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


def test_corrupt_results_are_reported_set_aside_and_made_again(tmp_path: Path) -> None:
    good = cartpole(0, 256)
    bad = {how: cartpole(seed, 256) for seed, how in enumerate(("half", "empty", "changed", "foreign"), start=1)}
    jobs = [good, *bad.values()]
    assert not run_jobs(jobs, tmp_path).failed
    expected = {job: content(job, tmp_path) for job in jobs}
    untouched = (tmp_path / good.name / RESULT).stat().st_mtime_ns
    for how, job in bad.items():
        spoil(tmp_path / job.name / RESULT, how)
    heard = Heard()
    again = run_jobs(jobs, tmp_path, observer=heard)
    said = "\n".join(heard.notes)
    assert set(again.results) == set(jobs)
    for job in bad.values():
        assert content(job, tmp_path) == expected[job]
        assert (tmp_path / job.name / f"{RESULT}.corrupt-1").exists()
        assert f"{tmp_path / job.name / RESULT} is corrupt" in said
    assert said.count(f"{RESULT}.corrupt-1") == len(bad)
    assert good.name not in said
    # what was done was not done again
    assert (tmp_path / good.name / RESULT).stat().st_mtime_ns == untouched


def test_corrupt_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cartpole(0, 768)
    run_job(job, tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            run_job(job, tmp_path)
    path = tmp_path / job.name / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-5])
    (tmp_path / job.name / f"{RESULT}.part").write_text("half")  # of a process that died while writing
    heard = Heard()
    assert not run_jobs([job], tmp_path, observer=heard).failed
    assert f"{path} is corrupt" in heard.notes[0]
    assert path.with_name(f"{CHECKPOINT}.corrupt-1").exists()
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def test_checkpoint_of_other_settings_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cartpole(0, 768)
    run_job(job, tmp_path / "unbroken")
    path = broken_off(job, tmp_path, monkeypatch)
    checkpoint = read_checkpoint(path)
    checkpoint["settings"] = {**checkpoint["settings"], "learning_rate": 0.5}
    write_checkpoint(path, checkpoint)
    run_job(job, tmp_path)
    assert path.with_name(f"{CHECKPOINT}.not-used-1").exists()
    assert "The settings have changed" in (tmp_path / job.name / LOG).read_text()
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def test_the_greatest_strength_outlives_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie before the break; a checkpoint that does not know it would make a corrected run look uncorrected."""
    job = cartpole(0, 768, hyperparams={**LIGHT, "correction_strength": 0.25})
    path = broken_off(job, tmp_path, monkeypatch)
    checkpoint = read_checkpoint(path)
    assert checkpoint["strongest"] == 0.25
    write_checkpoint(path, {**checkpoint, "strongest": 0.75})
    run_job(job, tmp_path)
    assert result_of(job, tmp_path).strongest == 0.75
    other = cartpole(1, 768)
    path = broken_off(other, tmp_path, monkeypatch)
    checkpoint = read_checkpoint(path)
    del checkpoint["strongest"]
    write_checkpoint(path, checkpoint)
    run_job(other, tmp_path)
    assert path.with_name(f"{CHECKPOINT}.not-used-1").exists()


def test_a_log_of_an_earlier_version_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cartpole(0, 768)
    run_job(job, tmp_path / "unbroken")
    path = broken_off(job, tmp_path, monkeypatch)
    checkpoint = read_checkpoint(path)
    del checkpoint["log"]._powers
    write_checkpoint(path, checkpoint)
    run_job(job, tmp_path)
    assert path.with_name(f"{CHECKPOINT}.not-used-1").exists()
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
    monkeypatch.setattr(results, "read_checkpoint", gone)
    assert set_aside_corrupt(tmp_path) == []
