"""``sb3-avgcorr diagnose``: what it prints and writes, and mistakes of the user in one line."""

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from conftest import ClockEnv
from stable_baselines3 import PPO

from sb3_avgcorr.cli.main import main
from sb3_avgcorr.diagnostics import estimates

SMALL = ["--n-steps", "400", "--n-resets", "16", "--n-envs", "4"]


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fits too short to be good: these tests are not about how good they are."""
    monkeypatch.setattr(estimates, "FIT_UPDATES", 5)
    monkeypatch.setattr(estimates, "MIN_PASSES", 1)
    monkeypatch.chdir(tmp_path)


def test_an_algorithm_trained_on_the_spot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--env", "avgcorr/TwoState-v0", *SMALL, "--algo", "a2c", "--steps", "100", "--gamma", "0.8"]
    assert main(["diagnose", *task, "--out", "out/new"]) == 0
    printed = capsys.readouterr().out
    assert "Verdict: " in printed
    assert "gamma 0.8" in printed
    assert "correction_strength='auto' would choose" in printed
    out = tmp_path / "out" / "new"
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    assert "<script" not in page
    assert {p.name for p in out.iterdir()} == {"report.html", "report.json", "steps.png", "states.png", "training.png"}
    history = json.loads((out / "report.json").read_text())["history"]
    assert [row["timesteps"] for row in history] == [20.0, 40.0, 60.0, 80.0, 100.0]
    assert all(0.0 <= row["strength"] <= 1.0 for row in history)


def test_a_saved_model(capsys: pytest.CaptureFixture[str]) -> None:
    PPO("MlpPolicy", "CartPole-v1", gamma=0.97, n_steps=64, device="cpu").save("m.zip")
    assert main(["diagnose", "--env", "CartPole-v1", *SMALL, "--model", "m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gamma"] == 0.97
    assert found["strength"]["rollout"] == 64  # of one environment, as it was trained


class NeverMade(ClockEnv):
    """An environment that must not be made, because the mistake could have been seen before."""

    def __init__(self) -> None:
        raise AssertionError("too late")


def needs_more() -> gym.Env[Any, Any]:
    import package_that_is_nowhere

    return package_that_is_nowhere.make()


def not_installed() -> gym.Env[Any, Any]:
    raise gym.error.DependencyNotInstalled("package_that_is_nowhere is not installed,\nrun `pip install it`")


gym.register("NeverMade-v0", NeverMade)
gym.register("NeedsMore-v0", needs_more)
gym.register("NotInstalled-v0", not_installed)
EARLY, CARTPOLE = ["--env", "NeverMade-v0"], ["--env", "CartPole-v1", *SMALL]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([*EARLY, "--n-envs", "0"], "--n-envs 0 is too few: it must be at least 1"),
        ([*EARLY, "--algo", "ppo", "--steps", "-5"], "--steps -5 is too few"),
        ([*EARLY, "--n-steps", "-5"], "--n-steps -5 is too few: it must be at least 100"),
        ([*EARLY, "--n-resets", "0"], "--n-resets 0 is too few"),
        ([*EARLY, "--gamma", "1.5"], "--gamma 1.5"),
        ([*EARLY, "--gamma", "nan"], "--gamma nan"),
        ([*EARLY, "--seed", "-1"], "--seed -1"),
        ([*EARLY, "--out", "file"], "--out file: nothing can be written there"),
        ([*EARLY, "--out", "file/below"], "--out file/below: nothing can be written there"),
        ([*EARLY, "--model", "nowhere.zip"], "--model nowhere.zip: there is no such file"),
        ([*EARLY, "--vecnormalize", "nowhere.pkl"], "--vecnormalize nowhere.pkl: there is no such file"),
        ([*EARLY, "--model", "m.zip", "--algo", "ppo"], "--model and --algo were both given"),
        ([*CARTPOLE, "--vecnormalize", "m.zip"], "--vecnormalize m.zip does not hold statistics for CartPole-v1"),
        ([*CARTPOLE, "--vecnormalize", "list.pkl"], "--vecnormalize list.pkl does not hold statistics"),
        ([*CARTPOLE, "--model", "file"], "file"),
        ([*CARTPOLE, "--model", "other.zip"], "spaces do not match"),
        ([*CARTPOLE, "--env-kwargs", "foo:3"], "unexpected keyword argument 'foo'"),
        ([*CARTPOLE, "--gym-packages", "package_that_is_nowhere"], "--gym-packages package_that_is_nowhere"),
        ([*CARTPOLE, "--algo", "ppo_mask", "--steps", "64"], "action masking"),
        (["--env", "NoSuchTask-v0"], "NoSuchTask"),
        (["--env", "NeedsMore-v0"], "No module named 'package_that_is_nowhere'"),
        (["--env", "NotInstalled-v0"], "package_that_is_nowhere is not installed, run `pip install it`"),
    ],
)
def test_mistakes(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("not a folder, and not a model")
    Path("list.pkl").write_bytes(pickle.dumps([1, 2]))
    if "m.zip" in arguments:
        PPO("MlpPolicy", "CartPole-v1", device="cpu").save("m.zip")
    if "other.zip" in arguments:
        PPO("MlpPolicy", ClockEnv(), device="cpu").save("other.zip")
    assert main(["diagnose", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0]
