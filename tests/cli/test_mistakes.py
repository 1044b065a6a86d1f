"""Mistakes of the user and runs that fail: one line that names what would help, the right exit code, nothing left behind."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from conftest import FaultyEnv
from zoo_fixtures import QUICK, SMALL, same_algorithms_and_plots_afterwards  # noqa: F401

import sb3_avgcorr
from sb3_avgcorr.cli import main as cli
from sb3_avgcorr.errors import nearest, one_line
from sb3_avgcorr.zoo.algorithms import ALGORITHMS


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said of a mistake: one line."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("sb3-avgcorr: ")
    return lines[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with files that make no sense."""
    monkeypatch.chdir(tmp_path)
    entries = {
        "text.yml": {"n_steps": "12"},
        "half.yml": {"batch_size": 64.5},
        "budget.yml": {"n_timesteps": "1e6"},
        "rate.yml": {"learning_rate": "linear"},
    }
    for name, entry in entries.items():
        Path(name).write_text(yaml.safe_dump({"CartPole-v1": {"policy": "MlpPolicy", "n_timesteps": 64, **entry}}))
    Path("raises.py").write_text("hyperparams = 1 / 0")
    Path("model.zip").write_text("no archive")
    return tmp_path


MISTAKES = [
    (["--algo", "averging_ppo"], "no algorithm 'averging_ppo'; did you mean 'averaging_ppo'?"),
    (["--env", "CartPol-v1"], "no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    (["--env", "avgcorr/TwoStates-v0"], "did you mean 'avgcorr/TwoState-v0'?"),
    (["--env", "no_such_package:Thing-v0"], "'no_such_package', which should register environments"),
    (["--env", ".relative:CartPole-v1"], "'.relative', which should register environments"),
    (["--env-kwargs", "foo:3"], "unexpected keyword argument 'foo'"),
    (["--env-kwargs", "foo:3", "--vec-env", "subproc"], "unexpected keyword argument 'foo'"),
    (["-params", "correction_lamda:0.5"], "no hyperparameter 'correction_lamda'; did you mean 'correction_lambda'?"),
    (["-params", "correction_lambda:1.5"], "correction_lambda=1.5 makes no sense"),
    (["-params", "seed:3"], "use --seed"),
    (["-params", "learning_rate"], "'learning_rate' (-params) must be key:value"),
    (["-params", "correction:power"], "text in quotes"),
    (["-params", "n_envs:0"], "n_envs=0 makes no sense: it must be a whole number >= 1"),
    (["-params", "n_epochs:0"], "n_epochs=0 makes no sense"),
    (["-params", "gae_lambda:'much'"], "gae_lambda='much' makes no sense: it must be a number"),
    (["-params", "policy_kwargs:dict(foo=1)"], "unexpected keyword argument 'foo'"),
    (["-params", "policy:'no_such_package.Policy'"], "No module named 'no_such_package'"),
    (["-params", "env_wrapper:'gymnasium.wrappers.Nothing'"], "no attribute 'Nothing'"),
    (["--device", "abacus"], "--device is 'abacus'; it must be auto, cpu, cuda"),
    (["-n", "0"], "--n-timesteps: 0 makes no sense; it must be at least 1"),
    (["-n", "-5"], "--n-timesteps: -5 makes no sense"),
    (["--eval-episodes", "0"], "--eval-episodes: 0 makes no sense"),
    (["--n-eval-envs", "0"], "--n-eval-envs: 0 makes no sense"),
    (["--seed", "99999999999"], "Seed must be between"),
    (["-conf", "missing.yml"], "missing.yml cannot be read"),
    (["-conf", "."], "'.' (-conf) must be a .yml or .yaml file"),
    (["-conf", "raises.py"], "ZeroDivisionError"),
    (["-conf", "text.yml"], "n_steps='12' makes no sense: it must be a whole number"),
    (["-conf", "half.yml"], "batch_size=64.5 makes no sense: it must be a whole number"),
    (["-conf", "budget.yml"], "n_timesteps='1e6' makes no sense"),
    (["-conf", "rate.yml"], "learning_rate='linear' makes no sense"),
    (["--algo", "averaging_trpo", "--paper"], "The paper has no settings for 'averaging_trpo'"),
    (["-i", "missing.zip"], "The trained agent 'missing.zip' is not there"),
    (["-i", "model.zip"], "model.zip wasn't a zip-file"),
    (["--trial-id", "0"], "--trial-id needs --storage and --study-name"),
    (["--trial-id", "0", "-optimize", "--storage", "sqlite:///a.db", "--study-name", "a"], "leave one of them out"),
    (["--env", "ALE/Pong-v5"], "name that, too: package:ALE/Pong-v5"),
    (["--trial-id", "0", "--storage", "sqlite:///no/such/folder.db", "--study-name", "a"], "unable to open database file"),
    (["-optimize", "--storage", "sqlite:///no/such/folder.db"], "(--storage) cannot be opened: "),
    (["-optimize", "--storage", "nonsense"], "'nonsense' (--storage) cannot be opened"),
    (["-f", "model.zip"], "model.zip"),
    (["-tb", "model.zip", "--eval-freq", "-1"], "model.zip"),
]


@pytest.mark.parametrize("arguments, complaint", MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_named_and_leaves_nothing_behind(
    arguments: list[str], complaint: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(here.rglob("*"))
    code = cli.main(["train", "--verbose", "0", *arguments])
    assert complaint in said(capsys)
    assert code == (1 if "-tb" in arguments else 2)  # SB3 opens it when the training begins
    assert sorted(here.rglob("*")) == before
    # a folder of the user's stays, empty as it was
    if "-f" not in arguments:
        own = here / "own"
        own.mkdir()
        assert cli.main(["train", *arguments, "--verbose", "0", "-f", "own"]) == code
        assert sorted(here.rglob("*")) == sorted([*before, own])


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["enjoy"], "holds no run on CartPole-v1 with a CartPole-v1.zip. Train first (sb3-avgcorr train"),
        (["enjoy", "--load-best", "-f", "elsewhere"], "'elsewhere/averaging_ppo' holds no run on CartPole-v1"),
        (["enjoy", "--exp-id", "7"], "CartPole-v1_7 folder was not found"),
        (["enjoy", "-n", "0"], "--n-timesteps: 0 makes no sense"),
        (["record-video", "--env", "Cartpole-v1"], "did you mean 'CartPole-v1'?"),
        (["push-to-hub", "-orga", "me"], "holds no run on CartPole-v1"),
        (["plot-train"], "plot-train needs --algo"),
        (["plot-train", "-a", "ppo", "-e", "CartPole-v1"], "'logs/ppo': No such file or directory"),
        (["plot-train", "-a", "ppo", "-e", "CartPole-v1", "-w", "0"], "--episode-window: 0 makes no sense"),
        (["all-plots"], "all-plots needs --algos"),
        (["all-plots", "-a", "ppo"], "all-plots needs --env"),
        (["plot-from-file"], "plot-from-file needs --input"),
        (["plot-from-file", "-i", "missing"], "'missing.pkl': No such file or directory"),
    ],
)
def test_mistakes_of_the_other_commands(arguments: list[str], complaint: str, here: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 2
    assert complaint in said(capsys)


@pytest.mark.filterwarnings("ignore:No artists with labels:UserWarning")
def test_a_plot_of_nothing_is_a_mistake(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "logs" / "ppo" / "Acrobot-v1_1").mkdir(parents=True)
    for command in (["plot-train", "-a", "ppo", "-e", "CartPole-v1"], ["all-plots", "-a", "ppo", "-e", "CartPole-v1"]):
        assert cli.main(command) == 2
        assert "found nothing to plot" in said(capsys)
    assert not list(here.rglob("*.png"))


def test_help_and_version(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    output = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in output
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"sb3-avgcorr {sb3_avgcorr.__version__}\n"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    output = capsys.readouterr().out
    assert "--paper" in output
    assert "--optimize-hyperparameters" in output


@pytest.mark.parametrize(
    "name, known, meant",
    [
        ("averging_ppo", ALGORITHMS, "averaging_ppo"),
        ("avg_correction", ["normalize_correction", "gamma"], None),
        ("dreamer", ["reacher", "ppo"], None),
        ("cartpole", ["CartPole-v1", "MountainCar-v0"], "CartPole-v1"),
        ("TwoState-v0", ["avgcorr/TwoState-v0", "avgcorr/Ring-v0"], "avgcorr/TwoState-v0"),
        ("LunarLander-v9", ["LunarLander-v3", "LunarLanderContinuous-v3"], "LunarLander-v3"),
        ("Foo-v1", ["Ant-v1", "Hopper-v1"], None),
        ("entropy", ["ent_coef", "env_wrapper"], None),
        ("correction_lamda", ["correction_lambda", "gae_lambda"], "correction_lambda"),
    ],
)
def test_only_a_close_name_is_suggested(name: str, known: Any, meant: str | None):
    if meant is None:
        assert nearest(name, known) == f"known are: {', '.join(sorted(known))}."
    else:
        assert nearest(name, known) == f"did you mean {meant!r}?"


def test_a_long_list_is_not_recited():
    assert nearest("xyz", [f"name{number}" for number in range(100)]) == "none of the 100 known names is close to it."


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    """In a process of its own, in which nothing is imported yet."""
    script = """
import sys
from sb3_avgcorr.cli.main import COMMANDS, main
sys.modules["rl_zoo3"] = None
for command in COMMANDS:
    if command not in ("diagnose", "reproduce"):  # which need it only for some of what they do
        print(main([command, "--env", "CartPole-v1"]), command, COMMANDS[command].extra)
del sys.modules["rl_zoo3"]
sys.modules["pandas"] = None
print(main(["compare", "--env", "CartPole-v1"]), "compare", "experiments")
"""
    run = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    codes = [line.split() for line in run.stdout.splitlines()]
    assert len(codes) == 9
    messages = run.stderr.splitlines()
    for number, ((code, command, extra), message) in enumerate(zip(codes, messages, strict=True)):
        missing = "pandas" if number == 8 else "rl_zoo3"
        assert code == "2"
        assert extra == ("experiments" if command == "compare" else "zoo")
        assert message == f"sb3-avgcorr: This needs {missing}, which is not installed: pip install 'sb3-avgcorr[{extra}]'"


@pytest.mark.parametrize(
    "env_id, package, modules, extra",
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("Hopper-v5", "mujoco", "gymnasium.envs.mujoco", "dm-control"),
        ("avgcorr/PointMassEasy-v0", "shimmy", "sb3_avgcorr.envs", "dm-control"),
    ],
)
@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_an_environment_whose_own_dependency_is_missing(
    env_id: str,
    package: str,
    modules: str,
    extra: str,
    vec_env: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for name in [name for name in sys.modules if name.startswith(f"{modules}.") or name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["train", "--env", env_id, "--vec-env", vec_env, *QUICK]) == 2
    message = said(capsys)
    assert package.lower() in message.lower()
    assert f"sb3-avgcorr[{extra}]" in message
    assert not Path("logs").exists()


def test_tensorboard_is_looked_for_before_anything_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert cli.main(["train", "-tb", "tb", *QUICK, *SMALL]) == 2
    assert said(capsys) == "sb3-avgcorr: -tb needs tensorboard, which is not installed: pip install 'sb3-avgcorr[zoo]'"
    assert not Path("logs").exists()


def test_a_failed_set_up_leaves_other_runs_alone(here: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", *QUICK, *SMALL]) == 0
    assert cli.main(["train", *QUICK, *SMALL, "gamma:2.0"]) == 2
    assert "gamma=2.0 makes no sense" in capsys.readouterr().err
    assert [path.name for path in Path("logs", "averaging_ppo").iterdir()] == ["CartPole-v1_1"]


def test_a_policy_that_is_not_finite_is_a_failed_run(here: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["-n", "2048", "--eval-freq", "-1", "--verbose", "0", "--seed", "1", *SMALL, "learning_rate:1e20"]
    assert cli.main(["train", *arguments]) == 1
    output, error = capsys.readouterr()
    assert len(error.strip().splitlines()) == 1
    assert "Training failed after " in error
    assert "finite" in error
    assert "Done" not in output
    assert cli.main(["enjoy", "--no-render"]) == 2  # it has left no model
    assert "holds no run on CartPole-v1" in said(capsys)


def test_an_environment_that_fails_in_the_middle(here: Path, capsys: pytest.CaptureFixture[str]):
    gym.register("Faulty-v0", lambda: FaultyEnv(at=100, fault=ValueError("the robot fell\nover")))
    try:
        assert cli.main(["train", "--env", "Faulty-v0", *QUICK, *SMALL]) == 1
    finally:
        del gym.registry["Faulty-v0"]
    output, error = capsys.readouterr()
    assert error == "sb3-avgcorr: Training failed after 198 steps: the robot fell over\n"
    assert "Done" not in output


def test_a_full_disk_leaves_no_model_that_cannot_be_loaded(here: Path, capsys: pytest.CaptureFixture[str]):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # less than a model
        code = cli.main(["train", *QUICK, *SMALL])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1
    output, error = capsys.readouterr()
    assert len(error.strip().splitlines()) == 1
    assert "could not be saved in logs/averaging_ppo/CartPole-v1_1: " in error
    assert os.strerror(27) in error  # of the file system, not what PyTorch makes of it
    assert "Done" not in output
    assert not list(Path("logs").rglob("*.zip"))


def test_messages_are_one_line_of_a_bearable_length():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(TypeError("a")) == "TypeError: a"
    assert len(one_line(ValueError("word " * 1000))) <= 500
    assert one_line(AssertionError()) == "it gave no reason"
