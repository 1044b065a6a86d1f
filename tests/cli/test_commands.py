"""The sb3-avgcorr command, end to end."""

import csv
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import matplotlib
import numpy as np
import pytest
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from zoo_fixtures import QUICK, SMALL, same_algorithms_and_plots_afterwards  # noqa: F401

from sb3_avgcorr.cli import main as cli
from sb3_avgcorr.zoo import register
from sb3_avgcorr.zoo.algorithms import ALGORITHMS, UncorrectedPPO
from sb3_avgcorr.zoo.masks import MaskFromInfo, MaskSource


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


def test_a_run_without_a_model_is_not_taken_for_the_latest(
    trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "logs" / "averaging_ppo"
    for number in (1, 2, 10):
        shutil.copytree(trained[0] / "logs" / "averaging_ppo" / "CartPole-v1_1", runs / f"CartPole-v1_{number}")
    (runs / "CartPole-v1_10" / "CartPole-v1.zip").unlink()  # as a run that failed; its best model is there
    enjoy = ["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "10"]
    for options, loaded in (
        ([], "_2/CartPole-v1"),
        (["--load-best"], "_10/best_model"),
        (["--exp-id", "1"], "_1/CartPole-v1"),
    ):
        assert cli.main([*enjoy, *options]) == 0
        assert f"Loading logs/averaging_ppo/CartPole-v1{loaded}.zip" in capsys.readouterr().out
    assert cli.main([*enjoy, "--load-last-checkpoint"]) == 2
    assert "holds no run on CartPole-v1 with a rl_model_*_steps.zip" in capsys.readouterr().err


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
    assert matplotlib.pyplot.get_fignums() == []
    capsys.readouterr()
    assert cli.main(["plot-train", *which, "-w", "5", "--save", "no/such/folder.png"]) == 2
    assert "cannot be saved as 'no/such/folder.png'" in capsys.readouterr().err
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


@pytest.mark.slow
def test_a_video_of_mujoco_needs_no_screen(tmp_path: Path):
    """In processes of their own: MuJoCo chooses how to draw when it is imported."""
    pytest.importorskip("moviepy")
    pytest.importorskip("mujoco")
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")}
    for command in (
        ["train", "--env", "HalfCheetah-v5", "-n", "64", "--eval-freq", "-1", *SMALL],
        ["record-video", "--env", "HalfCheetah-v5", "-n", "5", "-o", "videos"],
    ):
        python = [sys.executable, "-m", "sb3_avgcorr"]
        run = subprocess.run([*python, *command], cwd=tmp_path, env=hidden, text=True, capture_output=True, timeout=300)
        assert run.returncode == 0, run.stderr
    assert list((tmp_path / "videos").glob("*.mp4"))


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

    assert MaskSource.name() in (tmp_path / "averaging_ppo_mask" / f"{taxi}_1" / taxi / "config.yml").read_text()
    model = ALGORITHMS["averaging_ppo_mask"].cls.load(tmp_path / "averaging_ppo_mask" / f"{taxi}_1" / f"{taxi}.zip")
    with ThreadPoolExecutor(1) as thread, pytest.warns(UserWarning, match="No environment was named whose action masks"):
        thread.submit(model.predict, np.array([0, 1])).result()  # where no environment was begun yet
    env = MaskSource(make_vec_env(taxi, 2, seed=0, wrapper_class=MaskFromInfo))
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
    check = "import rl_zoo3.exp_manager, rl_zoo3.train\n"
    check += "assert rl_zoo3.train.ExperimentManager is rl_zoo3.exp_manager.ExperimentManager\n"  # theirs is not touched
    script.write_text(f"from sb3_avgcorr.zoo import train; train()\n{check}")
    arguments = ["--algo", "power_a2c", "--env", "avgcorr/TwoState-v0", "-f", str(tmp_path / "logs"), *QUICK]
    run = subprocess.run([sys.executable, str(script), *arguments], text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "logs" / "power_a2c" / "avgcorr-TwoState-v0_1" / "avgcorr-TwoState-v0.zip").is_file()


def test_a_task_of_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """The installed command finds it, as `python -m` does."""
    (tmp_path / "my_task.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Mine-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=50)\n"
    )
    command = [str(Path(sys.executable).with_name("sb3-avgcorr")), "train", "--env", "my_task:Mine-v0", "-n", "64"]
    command += ["--algo", "power_ppo", "--eval-freq", "-1", "-params", "n_steps:32", "batch_size:32", "n_epochs:1"]
    run = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "at strength 1.00" in run.stdout  # γ^t is applied in full
