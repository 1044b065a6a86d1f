"""What a run is: its name, which numbers make sense, and a function as a run."""

import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Heard

from sb3_avgcorr.runs.files import LOG
from sb3_avgcorr.runs.jobs import FunctionJob, Job
from sb3_avgcorr.runs.results import Columns, read_result
from sb3_avgcorr.runs.run import run_job
from sb3_avgcorr.runs.runner import run_jobs, steps_done


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


def test_folders_of_earlier_versions_keep_their_names() -> None:
    """Worked out with the first version: results that are there must be found."""
    job = Job(
        "averaging_ppo",
        "avgcorr/LongTail-v0",
        3,
        40_000,
        hyperparams={"correction": None, "gamma": 0.9},
        env_kwargs={"strength": 0.5},
        eval_episodes=50,
    )
    assert job.name == "averaging_ppo-avgcorr_LongTail_v0-3-51fc212de493"
    assert Job("ppo", "CartPole-v1", 0, 10, paper=True).name == "ppo-CartPole_v1-0-597d78d63f34"


def squares(*, seed: int, steps: int, tell: Any, power: int = 2) -> dict[str, list[Any]]:
    """A run of a function: powers of numbers, and a trace of how often it was made."""
    print("Computing.")
    time.sleep(1.1)
    tell(steps // 2)
    return {"number": list(range(steps)), "power": [(seed + number) ** power for number in range(steps)]}


def fails(*, seed: int, steps: int, tell: Any) -> dict[str, list[Any]]:
    """A run that goes wrong."""
    raise ArithmeticError("no such number")


def test_a_function_as_a_run(tmp_path: Path) -> None:
    job = FunctionJob(f"{__name__}.squares", 10, 3, "squares")
    run_job(job, tmp_path)
    result = read_result(job, tmp_path)
    assert isinstance(result, Columns)
    assert result.columns == {"number": [0, 1, 2], "power": [100, 121, 144]}
    assert steps_done(job, tmp_path) == 1
    run_job(job, tmp_path)  # what is done is not done again
    assert (tmp_path / job.name / LOG).read_text().count("Computing.") == 1


def test_functions_go_through_the_runner(tmp_path: Path) -> None:
    """Our own, which any process can import: finished runs are kept, a failed one keeps no other from running."""
    settings = {"agent": "none", "gammas": [0.5], "points": 2}
    good = [FunctionJob("sb3_avgcorr.paper.counterexample.measure", seed, 20, "none", settings) for seed in range(2)]
    bad = FunctionJob("sb3_avgcorr.paper.counterexample.measure", 0, 20, "bad", {**settings, "theta": "text"})
    heard = Heard()
    outcome = run_jobs([*good, bad], tmp_path, workers=2, observer=heard)
    assert set(outcome.results) == set(good)
    assert "Error" in outcome.failed[bad]
    assert len(heard.ended) == 3
    again = Heard()
    assert set(run_jobs(good, tmp_path, observer=again).results) == set(good)
    assert again.ended == []


def test_names_of_functions() -> None:
    job = FunctionJob("a.b.c", 0, 10, "x", {"k": 1})
    assert job.name.startswith("b.c-0-")
    others = [
        FunctionJob("a.b.d", 0, 10, "x", {"k": 1}),
        FunctionJob("a.b.c", 1, 10, "x", {"k": 1}),
        FunctionJob("a.b.c", 0, 11, "x", {"k": 1}),
        FunctionJob("a.b.c", 0, 10, "x", {"k": 2}),
    ]
    assert len({job.name, *(other.name for other in others)}) == 5
    assert FunctionJob("a.b.c", 0, 10, "another label", {"k": 1}).name == job.name
    with pytest.raises(ValueError, match="steps is 0"):
        FunctionJob("a.b.c", 0, 0, "x")


def test_a_function_that_fails_leaves_its_reason(tmp_path: Path) -> None:
    job = FunctionJob(f"{__name__}.fails", 0, 1, "fails")
    with pytest.raises(ArithmeticError):
        run_job(job, tmp_path)
    assert "no such number" in (tmp_path / job.name / LOG).read_text()
    assert read_result(job, tmp_path) is None
