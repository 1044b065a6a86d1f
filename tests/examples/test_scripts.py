"""The example scripts run at small sizes, and do what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.envs.long_tail import LongTailContinuousEnv
from sb3_avgcorr.zoo.search import AVERAGING

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def load(name: str) -> ModuleType:
    """
    Import a script, which lies in no package.

    :param name: its name without the ending
    """
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_docstring_tells_how_to_run_it(script: Path) -> None:
    assert f"    python examples/{script.name}" in script.read_text(encoding="utf-8").split('"""')[1]


def test_custom_environment(capsys: pytest.CaptureFixture[str]) -> None:
    model = load("custom_environment").main(2000)
    assert model.num_timesteps == 2000
    assert capsys.readouterr().out.startswith("0% of the corridor: weight ")
    # episodes start at the left end, so that it is seen early
    ends = np.array([[0.0], [1.0]], dtype=np.float32)
    assert np.diff(model.predict_correction(ends)) < 0


def test_the_corridor_ends_at_the_treasure() -> None:
    env: Any = load("custom_environment").CorridorEnv(length=3)
    env.reset(seed=0)
    rewards, arrived = [], False
    while not arrived:
        _, reward, arrived, _, _ = env.step(1)
        rewards.append(reward)
    assert rewards == [-0.01] * (len(rewards) - 1) + [1.0]
    assert env.cell == 3


def test_asymmetric_actor(capsys: pytest.CaptureFixture[str]) -> None:
    gains = load("asymmetric_actor").main(10_000)
    out = capsys.readouterr().out
    assert f"k = {LongTailContinuousEnv().optimal_gain(0.9):.2f}" in out
    assert gains["averaging"] > gains[None] + 0.3  # 0.55 is best for the discounted return, -0.77 for the undiscounted


def test_custom_features_extractor() -> None:
    module = load("custom_features_extractor")
    space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    features = module.FourierFeatures(space, n_waves=3)
    seen = th.rand(2, 4)
    assert features(seen).shape == (2, features.features_dim) == (2, 7)
    model = module.main(2000)
    assert isinstance(model.policy.features_extractor, module.FourierFeatures)
    assert model.correction_weights.shape == (1000, 1)


def test_fitting_the_correction_leaves_the_extractor_alone() -> None:
    module = load("custom_features_extractor")
    made = {"features_extractor_class": module.FourierFeatures}
    model = AveragingPPO("MlpPolicy", "CartPole-v1", learning_rate=0.0, n_steps=64, policy_kwargs=made, seed=0, device="cpu")
    before = {name: value.clone() for name, value in model.policy.features_extractor.state_dict().items()}
    model.learn(64)
    for name, value in model.policy.features_extractor.state_dict().items():
        assert th.equal(value, before[name])


def test_optuna_search() -> None:
    study = load("optuna_search").main(n_trials=2, total_timesteps=2000)
    assert len(study.trials) == 2
    assert set(study.trials[0].params) == set(AVERAGING)
    assert study.best_value == max(trial.value for trial in study.trials)


def test_the_search_measures_the_discounted_return() -> None:
    module = load("optuna_search")

    class Follows:
        def predict(self, observations: dict[str, np.ndarray]) -> tuple[np.ndarray, None]:
            return (observations["observation"][:, 0] > 0).astype(np.int64), None

    # following the cue earns 1 in the first 5 of 200 steps, -0.2 in the others
    expected = sum(0.9**t * (1.0 if t < 5 else -0.2) for t in range(200))
    assert module.discounted_return(Follows(), episodes=3) == pytest.approx(expected, rel=1e-5)


def test_runs_without_ray(tmp_path: Path) -> None:
    # in an interpreter of its own, where a process is started as users start it
    code = f"import ray_runs; print(ray_runs.main(None, seeds=1, steps=300, folder={str(tmp_path)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    assert len(list(tmp_path.glob("*/result*"))) == 2


@pytest.mark.slow
def test_runs_on_ray(tmp_path: Path) -> None:
    returns = load("ray_runs").main(seeds=1, steps=300, folder=str(tmp_path))
    assert {name: len(values) for name, values in returns.items()} == {"without": 1, "averaging": 1}
