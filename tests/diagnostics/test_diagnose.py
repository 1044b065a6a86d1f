"""The diagnosis of every kind of task and model that a user may bring."""

import copy
import hashlib
import resource
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import SPACES, ClockEnv, policy_for, space_env
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback, diagnose, estimates


@pytest.fixture
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits too short to be good, for tests that are not about how good they are."""
    monkeypatch.setattr(estimates, "FIT_UPDATES", 5)
    monkeypatch.setattr(estimates, "MIN_PASSES", 1)


@pytest.mark.usefixtures("_coarse")
@pytest.mark.parametrize("kind", SPACES)
def test_every_observation_space(kind: str) -> None:
    env = DummyVecEnv([lambda: space_env(kind)] * 4)
    report = diagnose(env, None, 0.9, n_steps=400, n_resets=12)
    measures = [report.distance, report.classifier_distance, report.total_variation, report.effective_sample_size]
    assert all(0.0 <= x.low <= x <= x.high <= 1.0 for x in measures)
    assert report.n_episodes >= 28
    assert policy_for(kind) in report.policy


@pytest.mark.usefixtures("_coarse")
@pytest.mark.parametrize("space", ["box", "multi_discrete", "multi_binary"])
def test_every_action_space(space: str) -> None:
    env = space_env("box", copy.deepcopy(SPACES[space]))
    assert np.isfinite(diagnose(env, None, 0.9, n_steps=200, n_resets=12).gradient_angle)


@pytest.mark.usefixtures("_coarse")
def test_recurrent_and_masked_models(tmp_path: Any) -> None:
    contrib = pytest.importorskip("sb3_contrib")

    class Masked(ClockEnv):
        def action_masks(self) -> np.ndarray:
            return np.array([True, self.t % 2 == 0])

    recurrent = contrib.RecurrentPPO("MlpLstmPolicy", ClockEnv(), n_steps=16, device="cpu")
    masked = contrib.MaskablePPO("MlpPolicy", Masked(), n_steps=16, device="cpu")
    for model, env in (recurrent, ClockEnv()), (masked, Masked()):
        model.save(tmp_path / "model")
        for policy in model, tmp_path / "model.zip":
            report = diagnose(env, policy, 0.9, n_steps=200, n_resets=10)
            assert report.n_episodes == 10
    assert any("memory" in note for note in diagnose(ClockEnv(), recurrent, n_steps=100, n_resets=10).notes)


@pytest.mark.usefixtures("_coarse")
def test_a_model_is_only_read(tmp_path: Any) -> None:
    env = VecNormalize(DummyVecEnv([ClockEnv] * 2))
    model = A2C("MlpPolicy", env, gamma=0.9, device="cpu", seed=0).learn(50)
    model.save(tmp_path / "model")
    file = tmp_path / "model.zip"
    before, stamp = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns
    parameters = {k: v.clone() for k, v in model.policy.state_dict().items()}
    count, stream = env.obs_rms.count, th.get_rng_state()
    live, saved = (diagnose(env, p, n_steps=200, n_resets=10) for p in (model, file))
    assert (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) == (before, stamp)
    assert all(th.equal(v, parameters[k]) for k, v in model.policy.state_dict().items())
    assert (env.obs_rms.count, env.training, model.num_timesteps) == (count, True, 50)
    assert th.equal(th.get_rng_state(), stream)
    # the file says as much as the model does
    assert live.gamma == saved.gamma == 0.9
    assert live.gradient_angle == pytest.approx(saved.gradient_angle)
    assert live.total_variation == saved.total_variation


@pytest.mark.usefixtures("_coarse")
def test_tasks_without_much_of_an_episode() -> None:
    def continuing() -> ClockEnv:
        return ClockEnv(length=10**9)

    report = diagnose(DummyVecEnv([continuing] * 4), None, 0.9, n_steps=400, n_resets=10)
    assert "No episode ended within 100 steps" in report.notes[0]
    assert any("4 episodes" in note for note in report.notes)
    with pytest.raises(ValueError, match="one episode only"):
        diagnose(continuing(), None, n_steps=200, n_resets=10)
    at_once = diagnose(ClockEnv(length=1), None, 0.9, n_steps=200, n_resets=10)
    assert at_once.severity == "negligible"
    assert at_once.gradient_angle == at_once.total_variation == 0.0
    assert diagnose(ClockEnv(), None, 1.0, n_steps=200, n_resets=10).severity == "negligible"


def test_arguments_that_make_no_sense() -> None:
    env = ClockEnv()
    for arguments, said in (
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"n_steps": 3}, "n_steps=3"),
        ({"n_resets": 1}, "n_resets=1"),
        ({"critic": "mine"}, "critic='mine'"),
        ({"policy": DQN("MlpPolicy", env)}, "off-policy"),
        ({"policy": PPO("MlpPolicy", space_env("box"), device="cpu")}, "spaces do not match"),
    ):
        with pytest.raises(ValueError, match=said):
            diagnose(env, **arguments)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_coarse")
def test_callback_measures_and_does_not_disturb() -> None:
    class Clocks(CorrectionDiagnosticsCallback):
        steps: list[int]

        def _on_rollout_end(self) -> None:
            super()._on_rollout_end()
            self.steps.extend(self._next_steps.tolist())

    gym.register("Clock7-v0", lambda: ClockEnv(length=7))

    def train(callback: BaseCallback | None) -> PPO:
        env = DummyVecEnv([lambda: ClockEnv(length=7)] * 2)
        return PPO("MlpPolicy", env, n_steps=16, batch_size=32, seed=3, device="cpu").learn(128, callback=callback)

    callback = Clocks(every=2)
    callback.steps = []
    plain = train(None)
    for each in callback, CorrectionDiagnosticsCallback(every=2, reset_env="Clock7-v0", n_resets=20):
        for a, b in zip(plain.policy.parameters(), train(each).policy.parameters(), strict=True):
            assert th.equal(a, b)
    assert callback.steps == [2, 2, 4, 4, 6, 6, 1, 1]  # 16 steps a rollout, episodes of 7
    assert [row["timesteps"] for row in callback.history] == [64.0, 128.0]
    assert {"distance", "total_variation_low", "gradient_angle_high"} <= callback.history[0].keys()
    assert callback.report is not None
    with pytest.raises(ValueError, match="every=0"):
        CorrectionDiagnosticsCallback(every=0)


@pytest.mark.usefixtures("_coarse")
def test_names_are_escaped_and_grids_drawn(tmp_path: Any) -> None:
    report = diagnose("FrozenLake-v1", None, 0.9, n_steps=400, n_resets=16)
    assert report.grid == (4, 4)
    report.env, report.notes = "<b>&", ["<script>"]
    page = report.save(tmp_path).read_text()
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;b&gt;&amp;" in page


def test_the_plot_along_training_shows_every_measurement() -> None:
    plots = pytest.importorskip("sb3_avgcorr.diagnostics.plots")

    def row(steps: float, angle: tuple[float, float, float]) -> dict[str, float]:
        distances = {
            f"{n}{e}": 0.0 for n in ("distance", "classifier_distance", "total_variation") for e in ("", "_low", "_high")
        }
        low, value, high = angle
        of_angle = {"gradient_angle": value, "gradient_angle_low": low, "gradient_angle_high": high}
        return {"timesteps": steps, "strength": 1.0, **distances, **of_angle}

    told, lost = [(0.0, 0.0, 0.5), (20.0, 45.0, 80.0)], (0.0, 90.0, 180.0)
    for angles in [told[0]], told, [lost], [lost, lost], [told[0], lost, told[1]]:
        history = [row(1000.0 * (i + 1), angle) for i, angle in enumerate(angles)]
        figure = plots.history_figure(history)
        for axes in figure.axes:
            (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
            assert left < 1000.0
            assert 1000.0 * len(angles) < right
            for bars in axes.containers:
                points, _, (ends,) = bars
                drawn = np.concatenate([points.get_xydata(), *ends.get_segments()])
                assert ((drawn[:, 1] > bottom) & (drawn[:, 1] < top)).all()
        middle = figure.axes[1]
        drawn = sum(len(bars[0].get_xydata()) for bars in middle.containers)
        noise = sum(line.get_linestyle() == ":" for line in middle.lines)
        assert (drawn, noise) == (sum(a != lost for a in angles), angles.count(lost))


@pytest.mark.slow
def test_a_hundred_thousand_steps_of_cartpole() -> None:
    diagnose("CartPole-v1", n_steps=2000)  # imports and warm-up
    started = time.process_time()
    PPO("MlpPolicy", make_vec_env("CartPole-v1", 8), n_steps=12_500, batch_size=100_000, n_epochs=1, device="cpu").learn(1)
    stepping, memory = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    assert diagnose("CartPole-v1", n_steps=100_000).n_steps == 100_000
    assert time.process_time() - started - stepping < 60.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000  # kB
