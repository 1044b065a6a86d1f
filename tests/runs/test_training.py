"""One training run: what RL Zoo trains, broken off and resumed, with every episode written down."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv
from run_helpers import LIGHT, Stop, cartpole, content, result_of, run_through, stop_after
from stable_baselines3 import PPO

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.files import CHECKPOINT, LOG
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import JobManager, check_job
from sb3_avgcorr.runs.results import read_result
from sb3_avgcorr.runs.run import run_job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS, EpisodeLog, parameters_digest


@pytest.fixture(autouse=True)
def _checkpoint_at_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")


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
        Job(
            "averaging_ppo", "CartPole-v1", 1, 1024, hyperparams={**LIGHT, "critic_epochs": 1}
        ),  # both fits draw from one stream
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


def test_the_digest_sees_the_optimiser() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(16)
    before = parameters_digest(model)
    assert parameters_digest(model) == before
    next(iter(model.policy.optimizer.state.values()))["exp_avg"].mul_(2.0)
    assert parameters_digest(model) != before


def test_a_run_is_what_rl_zoo_trains(tmp_path: Path) -> None:
    job = cartpole()
    run_job(job, tmp_path)
    check_job(job)
    made = JobManager(job, tmp_path).setup_experiment()
    assert made is not None
    made[0].learn(job.steps)
    result = result_of(job, tmp_path)
    assert result.parameters == parameters_digest(made[0])
    # ... and a digest that something else does not have
    assert result.parameters != parameters_digest(JobManager(job, tmp_path).setup_experiment()[0])  # type: ignore[index]


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


def test_episodes_by_hand(tmp_path: Path) -> None:
    # Rewards of 1: the return is the length, the discounted return a geometric sum, whatever VecNormalize makes of them.
    job = cartpole(steps=600, hyperparams={**LIGHT, "normalize": True, "gamma": 0.9}, eval_episodes=3)
    run_job(job, tmp_path)
    result = result_of(job, tmp_path)
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


def test_a_class_among_the_settings(tmp_path: Path) -> None:
    job = cartpole(0, 256, hyperparams={**LIGHT, "policy_kwargs": {"activation_fn": th.nn.ReLU}})
    for _ in range(2):  # trained, then read again and compared with the files
        assert not run_jobs([job], tmp_path).failed
    result = result_of(job, tmp_path)
    assert "ReLU" in str(result.settings["policy_kwargs"])


#: wrappers that end episodes early for the sake of training
EARLY_ENDS = {
    "none": [],
    "geometric": [{"sb3_avgcorr.envs.wrappers.GeometricTermination": {"gamma": 0.9}}],
    "cut": [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 10}}],
}


@pytest.mark.parametrize("ends", EARLY_ENDS)
def test_evaluation_is_on_the_task_as_it_was_asked_for(ends: str, tmp_path: Path) -> None:
    job = Job(
        "averaging_ppo",
        "avgcorr/LongTail-v0",
        0,
        512,
        hyperparams={**LIGHT, "n_steps": 64, "batch_size": 64, "env_wrapper": EARLY_ENDS[ends]},
        env_kwargs={"length": 30, "strength": 1.0},
        eval_episodes=4,
        eval_without=("GeometricTermination", "TimeLimit"),
    )
    run_job(job, tmp_path)
    result = result_of(job, tmp_path)
    np.testing.assert_array_equal(result.evaluation.length, 30)
    assert (result.episodes.length < 30).any() == (ends != "none")
    # 25 late rewards of 1 or -1 beside 5 early ones: an even sum; the default strength of 0.2 would leave a fraction
    np.testing.assert_allclose(result.evaluation.returns % 2.0, 0.0)


def test_a_limit_that_belongs_to_the_task_stays_in_evaluation(tmp_path: Path) -> None:
    hyperparams = {**LIGHT, "n_steps": 64, "batch_size": 64, "env_wrapper": EARLY_ENDS["cut"]}
    job = Job("averaging_ppo", "avgcorr/LongTail-v0", 0, 256, hyperparams=hyperparams, eval_episodes=2)
    run_job(job, tmp_path)
    np.testing.assert_array_equal(result_of(job, tmp_path).evaluation.length, 10)


def probe(model: Any) -> dict[str, float]:
    """A figure of a trained model."""
    return {"steps": float(model.num_timesteps)}


def test_probe_of_the_trained_model(tmp_path: Path) -> None:
    job = cartpole(0, 256, probe=f"{__name__}.probe")
    assert job.name != cartpole(0, 256).name
    run_job(job, tmp_path)
    assert result_of(job, tmp_path).probe == {"steps": 256.0}


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


def test_returns_are_those_of_powers_of_gamma() -> None:
    """Against γ^t computed for each step, over several episodes of two environments."""
    rng = np.random.default_rng(0)
    rewards, dones = rng.standard_normal((400, 2)).astype(np.float32), rng.random((400, 2)) < 0.02
    log = EpisodeLog(2, 0.9)
    for step in range(400):
        log.add(rewards[step], dones[step], step)
    expected = []
    for env in range(2):
        ends = np.flatnonzero(dones[:, env])
        for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            part = rewards[start : end + 1, env].astype(np.float64)
            powers = (gamma ** np.arange(len(part)) for gamma in (1.0, 0.9, 0.99, 0.993, 0.995))
            expected.append((end, len(part), *(float(part @ power) for power in powers)))
    names = ("step", "length", "return", "discounted", "discounted_0.99", "discounted_0.993", "discounted_0.995")
    found = zip(*(log.columns[name] for name in names), strict=True)
    np.testing.assert_allclose(sorted(found), sorted(expected), rtol=1e-10, atol=1e-12)


def test_open_episodes_of_a_run(tmp_path: Path) -> None:
    job = cartpole(0, 256)
    run_job(job, tmp_path)
    result = result_of(job, tmp_path)
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
