"""The search spaces, and what becomes of trials."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

pytest.importorskip("rl_zoo3")
import rl_zoo3.utils

from sb3_avgcorr.cli import main as cli
from sb3_avgcorr.zoo import register
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.search import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER


@pytest.fixture(autouse=True)
def _same_algorithms_afterwards() -> Iterator[None]:
    before = dict(rl_zoo3.utils.ALGOS)
    yield
    rl_zoo3.utils.ALGOS.clear()
    rl_zoo3.utils.ALGOS.update(before)


def test_two_workers_share_one_database(tmp_path: Path):
    storage = f"sqlite:///{tmp_path}/study.db"
    command = ["train", "-optimize", "--algo", "averaging_bac", "-n", "512", "--storage", storage, "--study-name", "shared"]
    command += ["--n-evaluations", "1", "--eval-episodes", "1", "--pruner", "none", "--sampler", "random", "--no-optim-plots"]
    command += ["--verbose", "0", "-f", f"{tmp_path}/logs", "--n-trials"]
    python = [sys.executable, "-m", "sb3_avgcorr.zoo"]
    workers = [
        subprocess.Popen([*python, *command, "3", "--seed", seed], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    outputs = [worker.communicate(timeout=500) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], [error[-2000:] for _, error in outputs]
    study = optuna.load_study(study_name="shared", storage=storage)
    assert sorted(trial.number for trial in study.trials) == list(range(6))
    assert all(trial.state.is_finished() for trial in study.trials)
    assert {"correction_scale", "correction_coef", "correction_lambda", "critic_learning_rate"} <= study.trials[
        0
    ].params.keys()
    with sqlite3.connect(tmp_path / "study.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    # a search leaves its reports, and no run that `enjoy` would take for the latest
    assert not [path for path in (tmp_path / "logs" / "averaging_bac").iterdir() if path.is_dir()]

    # and it resumes: one more trial, in this process
    assert cli.main([*command, "1", "--seed", "3"]) == 0
    assert len(optuna.load_study(study_name="shared", storage=storage).trials) == 7


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_search_spaces(algo: str):
    register()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    env = "CartPole-v1"
    losses = set()
    for _ in range(6):
        trial = study.ask()
        sampled = HYPERPARAMS_SAMPLER[algo](trial, 1, 1, {})
        # what a trial is turned into when it is read back from a database
        assert HYPERPARAMS_CONVERTER[algo](dict(trial.params)) == sampled
        policy = "MlpLstmPolicy" if algo.endswith("lstm") else "MlpPolicy"
        small = {key: 16 for key in ("n_steps", "batch_size") if key in sampled}
        model = rl_zoo3.utils.ALGOS[algo](policy, env, **{**sampled, **small})
        for name, value in sampled.items():
            if "correction" in name and value is not None:
                assert getattr(model, name) == value
        if algo.startswith("averaging"):
            losses.add(sampled["correction_loss"])
            # the two that the paper adds; cross-entropy has no use for them
            assert (sampled["correction_coef"] is None) == (sampled["correction_loss"] == "bce")
            assert 1 <= sampled["correction_scale"] <= (150 if sampled["correction_loss"] == "mse" else 1)
    if algo.startswith("averaging"):
        assert losses == {"bce", "mse"}


def test_trials_of_a_study_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Also trial 0, which RL Zoo takes for none; a trial that is not there is named."""
    register()
    monkeypatch.chdir(tmp_path)
    storage = "sqlite:///study.db"
    study = optuna.create_study(storage=storage, study_name="mine", sampler=optuna.samplers.RandomSampler(seed=0))
    sampled = []
    for _ in range(2):
        trial = study.ask()
        sampled.append(HYPERPARAMS_SAMPLER["power_bac"](trial, 1, 1, {}))
        study.tell(trial, 1.0)
    command = ["train", "--algo", "power_bac", "--storage", storage, "--study-name", "mine", "-n", "64", "--eval-freq", "-1"]
    for number in (0, 1):
        # what the command line says wins over the trial
        assert cli.main([*command, "--verbose", "0", "--trial-id", str(number), "-params", "n_steps:8"]) == 0
        model = ALGORITHMS["power_bac"].cls.load(f"logs/power_bac/CartPole-v1_{number + 1}/CartPole-v1.zip")
        for name in ("gamma", "vf_coef", "critic_learning_rate", "normalize_correction"):
            assert getattr(model, name) == sampled[number][name]
        assert model.n_steps == 8
    capsys.readouterr()
    assert cli.main([*command, "--trial-id", "7"]) == 2
    assert "The study 'mine' has no trial 7 (--trial-id)" in capsys.readouterr().err
    assert cli.main([*command[:-5], "other", "--trial-id", "0"]) == 2
    assert "The study 'other' cannot be read" in capsys.readouterr().err
