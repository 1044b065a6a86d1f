"""The sb3-avgcorr command, end to end."""

import csv
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import matplotlib
import numpy as np
import pytest
import yaml

pytest.importorskip("rl_zoo3")
import optuna
import rl_zoo3.utils
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr.cli import main as cli
from sb3_avgcorr.errors import nearest
from sb3_avgcorr.zoo import register
from sb3_avgcorr.zoo.algorithms import ALGORITHMS, UncorrectedPPO
from sb3_avgcorr.zoo.masks import MaskFromInfo, acts_in
from sb3_avgcorr.zoo.search import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

SMALL = ["-params", "n_steps:64", "n_envs:2", "n_epochs:2", "batch_size:64"]
QUICK = ["-n", "256", "--eval-freq", "-1", "--verbose", "0", "--seed", "1"]


@pytest.fixture(autouse=True)
def _same_algorithms_and_plots_afterwards():
    before, backend = dict(rl_zoo3.utils.ALGOS), matplotlib.get_backend()
    matplotlib.use("Agg")
    yield
    rl_zoo3.utils.ALGOS.clear()
    rl_zoo3.utils.ALGOS.update(before)
    matplotlib.use(backend)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with one trained agent, and what was printed."""
    folder = tmp_path_factory.mktemp("zoo")
    command = ["train", "--algo", "averaging_ppo", "--env", "CartPole-v1", "-n", "1024", "--seed", "1", "--verbose", "0", "-P"]
    command += ["--eval-freq", "512", "--eval-episodes", "2", "-f", f"{folder}/logs", "-tb", f"{folder}/tb", *SMALL]
    run = subprocess.run(
        [sys.executable, "-m", "sb3_avgcorr.zoo", *command],
        cwd=folder,
        text=True,
        capture_output=True,
        check=True,
        timeout=300,
    )
    return folder, run.stdout


def test_train_leaves_what_rl_zoo_users_look_for(trained: tuple[Path, str]):
    folder, output = trained
    run = folder / "logs" / "averaging_ppo" / "CartPole-v1_1"
    for name in (
        "CartPole-v1.zip",
        "best_model.zip",
        "evaluations.npz",
        "0.monitor.csv",
        "1.monitor.csv",
        "CartPole-v1/config.yml",
    ):
        assert (run / name).is_file(), name
    config = yaml.unsafe_load((run / "CartPole-v1" / "config.yml").read_text())
    assert config["n_steps"] == 64
    assert config["normalize_correction"] == "running"
    assert list((folder / "tb" / "CartPole-v1").glob("AveragingPPO_1/events*"))

    assert (run / "correction.png").read_bytes().startswith(b"\x89PNG")
    with (run / "correction.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["timesteps"]) for row in rows] == list(range(128, 1025, 128))
    for row in rows:
        assert 0 <= float(row["weight_min"]) <= float(row["weight_max"])
        assert 0 < float(row["effective_sample_size"]) <= 1 + 1e-6

    closing = output.strip().splitlines()[-1]
    assert closing.startswith("Done after 1024 steps: mean return ")
    assert "effective sample size" in closing
    assert closing.endswith("logs/averaging_ppo/CartPole-v1_1/CartPole-v1.zip")


def test_enjoy(trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(trained[0])
    # the folder of `train` is the default, and so is the algorithm
    assert cli.main(["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "600", "--load-best"]) == 0
    assert "Mean reward" in capsys.readouterr().out


def test_plots(trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "logs" / "averaging_ppo"
    for number in (1, 2):  # plot-from-file wants two runs at least
        shutil.copytree(trained[0] / "logs" / "averaging_ppo" / "CartPole-v1_1", runs / f"CartPole-v1_{number}")
    which = ["-a", "averaging_ppo", "-e", "CartPole-v1"]
    # no screen: the plot goes to a file beside the runs
    assert cli.main(["plot-train", *which, "-w", "5"]) == 0
    assert (runs / "plot-train.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(["plot_train", *which, "-w", "5", "-f", "logs", "--save", "curve.pdf"]) == 0
    assert Path("curve.pdf").read_bytes().startswith(b"%PDF")

    assert cli.main(["all-plots", *which, "-f", "logs", "--no-million", "-o", "stored"]) == 0
    assert Path("all-plots.png").is_file()
    assert cli.main(["plot-from-file", "-i", "stored.pkl", "--skip-timesteps", "--save", "final.png"]) == 0
    assert Path("final.png").is_file()
    capsys.readouterr()
    assert cli.main(["plot-train", "-a", "averaging_trpo", "-e", "CartPole-v1"]) == 2
    assert "averaging_trpo" in capsys.readouterr().err


def test_trained_agent_goes_on(trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    agent = trained[0] / "logs" / "averaging_ppo" / "CartPole-v1_1" / "CartPole-v1.zip"
    arguments = ["-i", str(agent), "-f", str(tmp_path), *QUICK, *SMALL, "correction_epochs:0", "learning_rate:0.0"]
    assert cli.main(["train", "--env", "CartPole-v1", *arguments]) == 0
    assert "Loading pretrained agent" in capsys.readouterr().out
    # nothing was learned with these settings, so it is still the same agent: policy and correction were read back
    old, new = (
        ALGORITHMS["averaging_ppo"].cls.load(path).get_parameters()
        for path in (agent, tmp_path / "averaging_ppo" / "CartPole-v1_1" / "CartPole-v1.zip")
    )
    for part in ("policy", "correction_net"):
        # the correction's bias follows the mean of γ^t without any fit
        names = [name for name in old[part] if part == "policy" or name == "head.weight" or name.startswith("body")]
        assert len(names) > 2
        assert all((old[part][name] == new[part][name]).all() for name in names)


def test_record_video(trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    monkeypatch.chdir(trained[0])
    assert cli.main(["record-video", "--env", "CartPole-v1", "-n", "20", "-o", "videos"]) == 0
    assert list((trained[0] / "videos").glob("*.mp4"))


def test_push_to_hub(trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    class Hub:
        uploaded: ClassVar[dict[str, Path]] = {}

        def create_repo(self, **kwargs: Any) -> str:
            return "somewhere"

        def snapshot_download(self, repo_id: str, local_dir: Path) -> None:
            local_dir.mkdir(parents=True)

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            self.uploaded[repo_id] = folder_path

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.chdir(tmp_path)
    arguments = ["--env", "CartPole-v1", "-f", str(trained[0] / "logs"), "-orga", "somebody", "--no-render"]
    assert cli.main(["push-to-hub", *arguments]) == 0
    folder = Hub.uploaded["somebody/averaging_ppo-CartPole-v1"]
    assert (folder / "averaging_ppo-CartPole-v1.zip").is_file()
    assert "averaging_ppo" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--algo", "averging_ppo"], "no algorithm 'averging_ppo'; did you mean 'averaging_ppo'?"),
        (["--env", "CartPol-v1"], "no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["--env", "avgcorr/TwoStates-v0"], "did you mean 'avgcorr/TwoState-v0'?"),
        (["--env", "no_such_package:Thing-v0"], "'no_such_package', which should register environments"),
        (["-params", "correction_lamda:0.5"], "no hyperparameter 'correction_lamda'; did you mean 'correction_lambda'?"),
        (["-params", "correction_lambda:1.5"], "correction_lambda=1.5 makes no sense"),
        (["-params", "seed:3"], "use --seed"),
        (["-conf", "missing.yml"], "missing.yml cannot be read"),
        (["--algo", "averaging_trpo", "--paper"], "The paper has no settings for 'averaging_trpo'"),
        (["-i", "missing.zip"], "The trained agent 'missing.zip' is not there"),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *arguments, "--verbose", "0"]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    # a folder of the user's stays, empty as it was
    own = tmp_path / "own"
    own.mkdir()
    assert cli.main(["train", *arguments, "--verbose", "0", "-f", "own"]) == 2
    assert list(tmp_path.rglob("*")) == [own]


def test_a_failed_run_leaves_other_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "-f", str(tmp_path), *QUICK, *SMALL]) == 0
    assert cli.main(["train", "-f", str(tmp_path), *QUICK, *SMALL, "gamma:2.0"]) == 2
    assert "gamma=2.0 makes no sense" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "averaging_ppo").iterdir()] == ["CartPole-v1_1"]


def test_unknown_command_and_help(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    output = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in output
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    output = capsys.readouterr().out
    assert "--paper" in output
    assert "--optimize-hyperparameters" in output
    assert nearest("xyz", ["averaging_ppo"]) == "known are: averaging_ppo."


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "number, to_group, vec_env", [(signal.SIGTERM, False, "dummy"), (signal.SIGINT, True, "subproc")], ids=["term", "ctrl-c"]
)
def test_a_signal_saves_the_model(number: signal.Signals, to_group: bool, vec_env: str, tmp_path: Path):
    command = ["train", "-n", "100000000", "--eval-freq", "-1", "--verbose", "0", "-f", "logs", "--vec-env", vec_env, *SMALL]
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_avgcorr.zoo", *command],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    run = tmp_path / "logs" / "averaging_ppo" / "CartPole-v1_1"
    try:
        # until an episode has ended (a monitor file has two lines of header), a terminal's Ctrl-C goes to all processes
        monitor = run / "0.monitor.csv"
        wait_for(lambda: monitor.is_file() and len(monitor.read_text().splitlines()) > 4, process)
        (os.killpg if to_group else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number, err
    closing = out.strip().splitlines()[-1]
    assert closing.startswith("Stopped early after ")
    assert closing.endswith("Saved in logs/averaging_ppo/CartPole-v1_1/CartPole-v1.zip")
    assert "Traceback" not in err
    model = ALGORITHMS["averaging_ppo"].cls.load(run / "CartPole-v1.zip")
    assert model.num_timesteps > 0


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


def test_masks_under_rl_zoos_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    register()
    taxi = next(env_id for env_id in ("Taxi-v4", "Taxi-v3") if env_id in gym.registry)
    arguments = ["-f", str(tmp_path), *QUICK, "--verbose", "1", *SMALL]
    arguments[arguments.index("--eval-freq") + 1] = "128"
    assert cli.main(["train", "--algo", "averaging_ppo_mask", "--env", taxi, *arguments]) == 0
    capsys.readouterr()
    assert (
        cli.main(["enjoy", "--algo", "averaging_ppo_mask", "--env", taxi, "-f", str(tmp_path), "--no-render", "-n", "20"]) == 0
    )

    model = ALGORITHMS["averaging_ppo_mask"].cls.load(tmp_path / "averaging_ppo_mask" / f"{taxi}_1" / f"{taxi}.zip")
    env = make_vec_env(taxi, 2, seed=0, wrapper_class=MaskFromInfo)
    acts_in(env)
    obs = env.reset()
    for _ in range(60):
        actions, _ = model.predict(obs)
        masks = np.stack(env.env_method("action_masks"))
        assert masks[np.arange(2), actions].all()
        assert not masks.all()
        obs, *_ = env.step(actions)


def test_memory_under_rl_zoos_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--algo", "averaging_ppo_lstm", "--env", "CartPoleNoVel-v1", "-f", str(tmp_path)]
    assert cli.main(["train", *arguments, *QUICK, *SMALL]) == 0
    assert cli.main(["enjoy", *arguments, "--no-render", "-n", "100"]) == 0
    assert "Mean reward" in capsys.readouterr().out


def test_ppo_is_sb3s_and_knows_the_papers_schedule(tmp_path: Path):
    """Under our command `ppo` is a class of ours: it must learn what SB3's does, and read what SB3's has saved."""
    models = [cls("MlpPolicy", "CartPole-v1", n_steps=64, seed=0).learn(128) for cls in (PPO, UncorrectedPPO)]
    parameters = [model.get_parameters()["policy"] for model in models]
    assert all((parameters[0][name] == parameters[1][name]).all() for name in parameters[0])
    models[0].save(tmp_path / "sb3")
    loaded = UncorrectedPPO.load(tmp_path / "sb3").get_parameters()["policy"]
    assert all((parameters[0][name] == loaded[name]).all() for name in loaded)

    arguments = ["--algo", "ppo", "--env", "MountainCarContinuous-v0", "-f", str(tmp_path)]
    small = ["-params", "n_steps:64", "n_epochs:2", "critic_epochs:2", "batch_size:64"]
    assert cli.main(["train", "--paper", *arguments, *QUICK, *small]) == 0
    assert cli.main(["enjoy", *arguments, "--no-render", "-n", "20"]) == 0
    config = yaml.unsafe_load(
        (tmp_path / "ppo" / "MountainCarContinuous-v0_1" / "MountainCarContinuous-v0" / "config.yml").read_text()
    )
    assert config["target_kl"] == 0.08


def test_conf_file_wins_over_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    own = tmp_path / "own.yml"
    own.write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 64, n_steps: 32, critic_learning_rate: lin_0.01}")
    assert cli.main(["train", "--paper", "-conf", str(own), "-f", str(tmp_path), "--eval-freq", "-1", "--verbose", "0"]) == 0
    assert "Done after 64 steps" in capsys.readouterr().out
    model = ALGORITHMS["averaging_ppo"].cls.load(tmp_path / "averaging_ppo" / "CartPole-v1_1" / "CartPole-v1.zip")
    assert model.critic_learning_rate(0.5) == pytest.approx(0.005)


def test_two_lines_without_our_command(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("from sb3_avgcorr.zoo import register; register()\nfrom rl_zoo3.train import train; train()\n")
    arguments = ["--algo", "power_a2c", "--env", "avgcorr/TwoState-v0", "-f", str(tmp_path / "logs"), *QUICK]
    run = subprocess.run([sys.executable, str(script), *arguments], text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "logs" / "power_a2c" / "avgcorr-TwoState-v0_1" / "avgcorr-TwoState-v0.zip").is_file()


def test_without_rl_zoo_the_command_says_what_to_install():
    script = "import sys; sys.modules['rl_zoo3'] = None\nfrom sb3_avgcorr.cli.main import main; sys.exit(main(['train']))"
    run = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=120)
    assert run.returncode == 2
    assert run.stderr == "sb3-avgcorr: This needs rl_zoo3, which is not installed: pip install 'sb3-avgcorr[zoo]'\n"
