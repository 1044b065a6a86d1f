"""The diagnosis against finite MDPs solved exactly, and against every kind of task and model a user may bring."""

import copy
import hashlib
import json
import pickle
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
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback, Estimate, analysis, diagnose, estimates
from sb3_avgcorr.cli.diagnose import main
from sb3_avgcorr.diagnostics.distances import Columns, classifier_distance, histogram_distance
from sb3_avgcorr.diagnostics.estimates import blocks_of
from sb3_avgcorr.diagnostics.gradient import compare_gradients
from sb3_avgcorr.tabular import FiniteMDP, policy_probabilities, random_mdp, torch_gradient, total_variation


class MDPVecEnv(VecEnv):
    """Copies of a finite MDP, stepped all at once; episodes are cut after ``horizon`` steps."""

    def __init__(self, mdp: FiniteMDP, horizon: int, n_envs: int = 8, seed: int = 0) -> None:
        self.mdp, self.horizon, self.rng = mdp, horizon, np.random.default_rng(seed)
        self.seen = mdp.observations.astype(np.float32)
        self.cumulative, self.rho = np.cumsum(mdp.P.toarray(), axis=1), np.cumsum(mdp.rho)
        box = gym.spaces.Box(float(self.seen.min()), float(self.seen.max()), self.seen.shape[1:], np.float32)
        super().__init__(n_envs, box, gym.spaces.Discrete(mdp.n_actions))

    def _start(self) -> np.ndarray:
        return np.minimum(np.searchsorted(self.rho, self.rng.random(self.num_envs), side="right"), self.mdp.n_states - 1)

    def reset(self) -> np.ndarray:
        self.s, self.t = self._start(), np.zeros(self.num_envs, dtype=int)
        return self.seen[self.s]

    def step_async(self, actions: np.ndarray) -> None:
        self.a = actions

    def step_wait(self) -> Any:
        row, u = self.s * self.mdp.n_actions + self.a, self.rng.random(self.num_envs)
        rewards = self.mdp.r[self.s, self.a].astype(np.float32)
        terminated = u >= self.cumulative[row, -1] - 1e-12
        following = np.minimum((self.cumulative[row] <= u[:, None]).sum(axis=1), self.mdp.n_states - 1)
        self.t += 1
        done = terminated | (self.t >= self.horizon)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i] = {"terminal_observation": self.seen[following[i]], "TimeLimit.truncated": not terminated[i]}
        self.s, self.t = np.where(done, self._start(), following), np.where(done, 0, self.t)
        return self.seen[self.s], rewards, done, infos

    def close(self) -> None: ...
    def env_is_wrapped(self, *_: Any, **__: Any) -> list[bool]:
        return [False] * self.num_envs

    def env_method(self, *_: Any, **__: Any) -> list[Any]:
        raise NotImplementedError

    def get_attr(self, *_: Any, **__: Any) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, *_: Any, **__: Any) -> None: ...


def task(gamma: float, start: str, seed: int = 1) -> FiniteMDP:
    mdp = random_mdp(20, 3, gamma, seed, branching=2)
    rho = np.eye(20)[0] if start == "concentrated" else np.full(20, 1 / 20)
    return FiniteMDP(mdp.P, mdp.r, rho, gamma)


def fresh_policy(env: VecEnv, seed: int, sharpness: float = 50.0) -> ActorCriticPolicy:
    with th.random.fork_rng():
        th.manual_seed(seed)
        policy = PPO("MlpPolicy", env, n_steps=2, batch_size=2, device="cpu").policy
    with th.no_grad():
        policy.action_net.weight.mul_(sharpness)  # SB3's initial policy is all but uniform
    return policy


def exact(mdp: FiniteMDP, policy: ActorCriticPolicy, horizon: int) -> tuple[float, float]:
    """Total variation, and angle of the two gradients in degrees, for episodes of ``horizon`` steps."""
    pi = policy_probabilities(mdp, policy).detach().numpy()
    sampled, discounted = mdp.d_T(pi, horizon), mdp.expected_power(pi, horizon) * mdp.d_T(pi, horizon)
    discounted = np.nan_to_num(discounted) / np.nansum(discounted)
    u, c = (th.cat([g.flatten() for g in torch_gradient(mdp, policy, w)]).numpy() for w in (sampled, discounted))
    cosine = u @ c / np.linalg.norm(u) / np.linalg.norm(c)
    return total_variation(sampled, discounted), float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


@pytest.fixture
def _without_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "classifier_distance", lambda *_: Estimate(0.0, 0.0, 0.0))


@pytest.fixture
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits too short to be good, for tests that are not about how good they are."""
    monkeypatch.setattr(estimates, "FIT_UPDATES", 5)
    monkeypatch.setattr(estimates, "MIN_PASSES", 1)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits that are good enough for a handful of states."""
    monkeypatch.setattr(estimates, "FIT_UPDATES", 120)


def trial(gamma: float, start: str, seed: int) -> tuple[float, bool, Any]:
    mdp, horizon = task(gamma, start), 100
    env = MDPVecEnv(mdp, horizon, seed=seed)
    policy = fresh_policy(env, seed)
    variation, angle = exact(mdp, policy, horizon)
    report = diagnose(env, policy, gamma, n_resets=50, seed=seed)
    found = report.gradient_angle
    return abs(report.total_variation - variation), found.low <= angle <= found.high, report


@pytest.mark.usefixtures("_without_classifier")
@pytest.mark.parametrize("gamma, start", [(0.8, "concentrated"), (0.95, "uniform")])
def test_total_variation_and_angle_of_a_finite_mdp(gamma: float, start: str) -> None:
    error, covered, report = trial(gamma, start, 0)
    assert error < 0.05
    assert covered
    assert report.gradient_angle.high < 60.0  # an interval that says something
    assert (report.severity == "negligible") == (start == "uniform")


@pytest.mark.slow
@pytest.mark.usefixtures("_without_classifier")
def test_coverage_over_many_trials() -> None:
    trials = [trial(g, start, s) for s in range(5) for g in (0.8, 0.9, 0.99) for start in ("concentrated", "uniform")]
    assert max(error for error, _, _ in trials) < 0.05
    assert np.mean([covered for _, covered, _ in trials]) >= 0.9


@pytest.mark.usefixtures("_without_classifier", "_quick")
def test_stationary_starts_are_negligible() -> None:
    mdp = random_mdp(10, 2, 0.9, 3)
    mdp = FiniteMDP(mdp.P, mdp.r, mdp.d_pi(mdp.uniform_policy()), 0.9)
    env = MDPVecEnv(mdp, 50)
    report = diagnose(env, fresh_policy(env, 0, sharpness=0.0), 0.9, n_resets=50)
    assert report.severity == "negligible"
    assert report.verdict.startswith("negligible")
    assert report.total_variation < 0.05
    assert report.explained_variance < 0.01


class BlindActor(ActorCriticPolicy):
    """The actor sees nothing, the critic everything."""

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        forward = self.mlp_extractor.forward_actor
        self.mlp_extractor.forward_actor = lambda features: forward(th.zeros_like(features))  # type: ignore[method-assign]


@pytest.mark.usefixtures("_without_classifier", "_quick")
def test_two_states_that_the_actor_cannot_tell_apart_are_large() -> None:
    env = make_vec_env("avgcorr/TwoState-v0", 8)
    with th.random.fork_rng():
        th.manual_seed(0)
        policy = PPO(BlindActor, env, n_steps=2, batch_size=2, device="cpu").policy
    report = diagnose(env, policy, 0.8, n_steps=8000, n_resets=50)
    assert report.severity == "large", str(report)
    assert report.total_variation == pytest.approx(1 / 1.8 - 0.5, abs=0.01)
    # the same task, an actor that sees the state: each state's gradient points its own way whatever its weight
    assert diagnose(env, None, 0.8, n_steps=8000, n_resets=50).severity != "large"


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


@pytest.mark.usefixtures("_without_classifier", "_quick")
def test_a_hidden_clock_is_pointed_out() -> None:
    """The observation tells nothing, so the averaging correction can do nothing; γ^t would."""

    class EarlyAndLate(ClockEnv):
        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            observation, _, *rest = super().step(action)
            return observation, (1.0 if self.t <= 5 else -0.3) * (1 - 2 * int(action)), *rest  # type: ignore[return-value]

    env = DummyVecEnv([lambda: EarlyAndLate(length=40, tells=False)] * 8)
    report = diagnose(env, None, 0.8, n_steps=8000, n_resets=10)
    assert report.severity == "negligible"
    assert report.gradient.power_angle.low > 90.0
    assert any("correction='power'" in note for note in report.notes)


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


def test_table_1_distance_by_hand() -> None:
    space = gym.spaces.Box(np.array([0.0, -np.inf]), np.array([8.0, np.inf]), dtype=np.float64)
    # 8 bins: [0, 1), ..., and of the unbounded one [-4, -3), ..., with all beyond ±4 in the outer ones
    starts = Columns(np.array([[0.5, 0.0]] * 4), space)
    sampled = Columns(np.array([[0.2, 0.5], [0.9, 0.1], [7.9, 99.0], [8.0, 3.5]]), space)
    assert list(sampled.bins(np.arange(2))) == [4, 4, 63, 63]
    rng = np.random.default_rng(0)
    distance = histogram_distance(starts, sampled, blocks_of(np.zeros((4, 1), dtype=int), rng), rng)
    assert float(distance) == 0.5
    wide = gym.spaces.Dict({"a": gym.spaces.Discrete(16), "b": gym.spaces.MultiBinary(3), "c": gym.spaces.Box(-1, 1, (2, 2))})
    columns = Columns({"a": np.array([0, 15]), "b": np.array([[0, 1, 0]] * 2), "c": np.zeros((2, 2, 2))}, wide)
    assert columns.dimensions == 8
    assert columns.bins(np.array([0])).tolist() == [0, 7]
    assert columns.bins(np.array([2, 7])).tolist() == [7 * 8 + 4] * 2


@pytest.mark.usefixtures("_quick")
def test_classifier_distance_of_known_distributions() -> None:
    rng = np.random.default_rng(0)
    blocks = blocks_of(np.tile(np.arange(20), 100)[:, None], rng)
    same, half, apart = rng.normal(size=(2000, 3)), rng.normal(size=(2000, 3)), rng.normal(size=(2000, 3))
    half[::2, 0] += 10.0
    starts = rng.normal(size=(2000, 3))
    assert classifier_distance(starts, same, blocks, rng) < 0.06
    found = classifier_distance(starts, half, blocks, rng)
    assert found.low <= 0.5 <= found.high
    assert found.high - found.low < 0.2
    assert classifier_distance(starts, apart + 20.0, blocks, rng) > 0.99


def test_noise_does_not_make_an_angle() -> None:
    """Both gradients are the same up to noise far longer than they are: the plain angle is that of the noise."""
    rng = np.random.default_rng(0)
    blocks = blocks_of(np.zeros((64, 1), dtype=int), rng)
    u, h = rng.normal(size=(2, 64, 2000))
    u[:, 0] += 15.0
    h *= 2.0
    plain = np.degrees(np.arccos(_cosine(u.sum(axis=0), (u + h).sum(axis=0))))
    found = compare_gradients(np.stack([u, h, h]), (np.ones(64), np.ones(64)), 1.0, blocks).angle
    assert plain > 25.0
    assert found < 10.0
    turned = h + 15.0 * np.eye(2000)[1]
    found = compare_gradients(np.stack([u, turned, turned]), (np.ones(64), np.ones(64)), 1.0, blocks).angle
    assert found.low < 45.0 < found.high
    assert found == pytest.approx(45.0, abs=6.0)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


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
def test_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--env", "avgcorr/TwoState-v0", "--n-steps", "400", "--n-resets", "16", "--n-envs", "4"]
    out = tmp_path / "out"
    assert main([*common, "--algo", "a2c", "--steps", "100", "--gamma", "0.8", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Verdict: " in printed
    assert "gamma 0.8" in printed
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    assert "<script" not in page
    assert {p.name for p in out.glob("*.png")} == {"steps.png", "states.png", "training.png"}
    assert len(json.loads((out / "report.json").read_text())["history"]) == 5

    model = tmp_path / "m.zip"
    PPO("MlpPolicy", "CartPole-v1", device="cpu").save(model)
    assert main(["--env", "CartPole-v1", *common[2:], "--model", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gamma"] == 0.99
    assert main([*common, "--model", str(tmp_path / "nowhere.zip")]) == 2
    assert main([*common, "--model", str(model)]) == 2
    assert "do not match" in capsys.readouterr().err
    assert main(["--env", "NoSuchTask-v0"]) == 2
    assert "NoSuchTask" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*common, "--model", str(model), "--algo", "ppo"])


@pytest.mark.usefixtures("_coarse")
def test_names_are_escaped_and_grids_drawn(tmp_path: Any) -> None:
    report = diagnose("FrozenLake-v1", None, 0.9, n_steps=400, n_resets=16)
    assert report.grid == (4, 4)
    report.env, report.notes = "<b>&", ["<script>"]
    page = report.save(tmp_path).read_text()
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;b&gt;&amp;" in page


def test_an_estimate_is_a_number_with_an_interval() -> None:
    x = pickle.loads(pickle.dumps(Estimate(0.5, 0.25, 1.0)))
    assert (x, x.low, x.high, x.value, x.interval) == (0.5, 0.25, 1.0, 0.5, (0.25, 1.0))


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
