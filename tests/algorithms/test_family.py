"""The whole family, and a user's own algorithm: invariants 1 to 5 and 7 of the design, masks, memory, and the direction."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, SpaceEnv, example, space_env
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr import AveragingA2C, AveragingPPO
from sb3_avgcorr.bac import BAC, AveragingBAC
from sb3_avgcorr.envs.two_state import TOP, TwoStateEnv

pytest.importorskip("sb3_contrib")
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker

from sb3_avgcorr.ppo_mask import AveragingMaskablePPO
from sb3_avgcorr.ppo_recurrent import AveragingRecurrentPPO
from sb3_avgcorr.trpo import AveragingTRPO


class Member(NamedTuple):
    theirs: type[OnPolicyAlgorithm]
    ours: Any
    settings: dict[str, Any]
    one_update: dict[str, Any]  # settings for a single step on a rollout of 320


SMALL_LSTM = {"lstm_hidden_size": 8, "net_arch": [8]}
FAMILY = {
    "ppo": Member(PPO, AveragingPPO, {"n_steps": 24, "batch_size": 20, "n_epochs": 2}, {"n_epochs": 1, "batch_size": 320}),
    "a2c": Member(A2C, AveragingA2C, {"n_steps": 24}, {"use_rms_prop": False}),
    "bac": Member(BAC, AveragingBAC, {"n_steps": 24}, {}),
    "trpo": Member(TRPO, AveragingTRPO, {"n_steps": 24, "batch_size": 20, "n_critic_updates": 2}, {"batch_size": 320}),
    "ppo_mask": Member(
        MaskablePPO,
        AveragingMaskablePPO,
        {"n_steps": 24, "batch_size": 20, "n_epochs": 2},
        {"n_epochs": 1, "batch_size": 320},
    ),
    "ppo_recurrent": Member(
        RecurrentPPO,
        AveragingRecurrentPPO,
        {"n_steps": 24, "batch_size": 20, "n_epochs": 2, "policy_kwargs": SMALL_LSTM},
        {"n_epochs": 1, "batch_size": 320},
    ),
    "reinforce": Member(example.Reinforce, example.AveragingReinforce, {"n_steps": 24}, {}),
}
# PPO and A2C have files of their own for what is tested first here
REST = [name for name in FAMILY if name not in ("ppo", "a2c")]


def policy_name(name: str, kind: str = "box") -> str:
    base = {"dict": "MultiInput", "image": "Cnn"}.get(kind, "Mlp")
    return base + ("LstmPolicy" if name == "ppo_recurrent" else "Policy")


def vec_env(name: str, make: Callable[[], gym.Env], n_envs: int = 2) -> VecEnv:
    def one() -> gym.Env:
        env = make()
        if name == "ppo_mask" and not hasattr(env, "action_masks"):
            return ActionMasker(env, lambda e: np.ones(e.action_space.n, dtype=bool))
        return env

    return make_vec_env(one, n_envs=n_envs)


def learned(model: Any, updates: int = 3) -> Any:
    return model.learn(updates * model.n_steps * model.n_envs)


def assert_same(ours: OnPolicyAlgorithm, theirs: OnPolicyAlgorithm) -> None:
    for (key, a), b in zip(ours.policy.state_dict().items(), theirs.policy.state_dict().values(), strict=True):
        assert th.equal(a, b), key
    states = [model.policy.optimizer.state_dict()["state"] for model in (ours, theirs)]
    assert states[1].keys() == states[0].keys()
    assert states[1], "an optimiser that has not stepped would prove nothing"
    for index, state in states[1].items():
        for key, value in state.items():
            assert th.equal(th.as_tensor(states[0][index][key]), th.as_tensor(value)), (index, key)


def differs(ours: OnPolicyAlgorithm, theirs: OnPolicyAlgorithm) -> bool:
    return any(not th.equal(a, b) for a, b in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True))


class MaskedEnv(SpaceEnv):
    """At each step another one of three actions is invalid; taking it is an error."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.t % 3

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_masks()[action], "an invalid action"
        return super().step(action)


# Invariants 1 and 2: nothing to correct

TASKS: dict[str, tuple[str, Callable[[], gym.Env]]] = {
    "discrete": ("box", lambda: space_env("box")),
    "continuous": ("box", lambda: space_env("box", spaces.Box(-1.0, 1.0, (2,), np.float32))),
    "dict": ("dict", lambda: space_env("dict")),
    "image": ("image", lambda: space_env("image")),
    "masked": ("box", MaskedEnv),
}
PAIRS = [
    (name, task)
    for name in REST
    for task in TASKS
    if (task != "masked" or name == "ppo_mask")
    and (task != "continuous" or name != "ppo_mask")
    and (task in ("discrete", "continuous") or name != "reinforce")
]
NOTHING_TO_CORRECT: dict[str, dict[str, Any]] = {
    "none": {"correction": None},
    "averaging, gamma 1": {"gamma": 1.0},
    "power, gamma 1": {"gamma": 1.0, "correction": "power"},
}


def make(name: str, ours: bool, task: str, **options: Any) -> Any:
    kind, make_env = TASKS[task]
    member = FAMILY[name]
    cls = member.ours if ours else member.theirs
    settings = {"seed": 3, "device": "cpu", **member.settings, **options}
    return cls(policy_name(name, kind), vec_env(name, make_env), **settings)


@pytest.mark.parametrize(
    "name, task, case",
    # images are slow, and gamma is no business of theirs
    [(name, task, case) for name, task in PAIRS for case in NOTHING_TO_CORRECT if task != "image" or case == "none"],
)
def test_same_as_the_algorithm(name: str, task: str, case: str) -> None:
    options, updates = NOTHING_TO_CORRECT[case], 2 if task == "image" else 3
    streams, models = [], []
    for ours in (True, False):
        theirs_options = {key: value for key, value in options.items() if key == "gamma"}
        models.append(learned(make(name, ours, task, **(options if ours else theirs_options)), updates))
        streams.append((th.get_rng_state(), np.random.get_state()[1]))  # noqa: NPY002  # SB3's own streams
    assert_same(*models)
    for of_ours, of_theirs in zip(*streams, strict=True):
        np.testing.assert_array_equal(of_ours, of_theirs)
    assert (models[0].correction_weights == 1.0).all()


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("name", REST)
def test_correction_changes_the_update(name: str, correction: str) -> None:
    # else the test above could not fail
    options = {"correction": correction, "correction_shrinkage": False, "gamma": 0.9}
    assert differs(learned(make(name, True, "discrete", **options)), learned(make(name, False, "discrete", gamma=0.9)))


@pytest.mark.parametrize("name", REST)
def test_constant_weights_are_no_correction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a network of its own, because a shared one also trains the critic
    model = make(name, True, "discrete", correction_network="separate", normalize_correction=True, fast=False)
    monkeypatch.setattr(model, "_estimates", lambda features, **_: np.full(len(features), 0.37))
    assert_same(learned(model), learned(make(name, False, "discrete")))


# Invariant 3: the fit does not touch the actor


class LinearExtractor(FlattenExtractor):
    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space)
        self.linear = th.nn.Linear(self.features_dim, self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.linear(super().forward(observations))


@th.no_grad()
def action_logits(model: Any) -> th.Tensor:
    observations = th.linspace(-1.0, 1.0, 30).reshape(10, 3)
    if isinstance(model, RecurrentPPO):
        state = th.linspace(-1.0, 1.0, 80).reshape(1, 10, 8)
        return model.policy.get_distribution(observations, (state, state), th.zeros(10))[0].distribution.logits
    return model.policy.get_distribution(observations).distribution.logits


@pytest.mark.parametrize(
    "share, options",
    [(True, {}), (False, {}), (True, {"correction_network": "separate"}), (True, {"correction_order": "after"})],
    ids=["shared", "own extractors", "separate", "after"],
)
@pytest.mark.parametrize("name", REST)
def test_fit_leaves_the_actor_alone(name: str, share: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    policy_kwargs = {**FAMILY[name].settings.get("policy_kwargs", {}), "features_extractor_class": LinearExtractor}
    policy_kwargs["share_features_extractor"] = share
    model = make(name, True, "discrete", policy_kwargs=policy_kwargs, critic_epochs=2, **options)
    fit, fits = model._fit, []

    def checked(*args: Any, **kwargs: Any) -> None:
        before = action_logits(model), [p.clone() for p in model.correction_net.parameters()]
        fit(*args, **kwargs)
        assert th.equal(before[0], action_logits(model))
        if kwargs["correction"]:
            assert any(not th.equal(a, b) for a, b in zip(before[1], model.correction_net.parameters(), strict=True))
        fits.append(kwargs["correction"])

    monkeypatch.setattr(model, "_fit", checked)
    learned(model, 2)
    assert fits == [True, False, True, False]


# Invariant 4: the clock


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", REST)
def test_clock_runs_over_rollouts(name: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter([7, 30, 100])
    env = vec_env(name, lambda: ClockEnv(length=next(lengths)), n_envs=3)
    lengths_of = np.array(env.get_attr("length"))
    model = FAMILY[name].ours(policy_name(name), env, device="cpu", fast=fast, **FAMILY[name].settings)
    train, seen = model.train, []

    def checked() -> None:
        buffer = model.rollout_buffer
        told = np.rint(buffer.observations[..., 0] * lengths_of)
        np.testing.assert_array_equal(buffer.episode_steps, told)
        seen.append(told.max())
        train()

    monkeypatch.setattr(model, "train", checked)
    learned(model, 3)
    assert seen == [23, 47, 71]


# Invariant 5: save, load, go on


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("name", REST)
def test_save_load_go_on(name: str, network: str, tmp_path: Path) -> None:
    options = {"correction_network": network, "correction_shrinkage": False, "gamma": 0.9}
    model = learned(make(name, True, "discrete", **options))
    model.save(tmp_path / "model")
    loaded = FAMILY[name].ours.load(tmp_path / "model", env=vec_env(name, TASKS["discrete"][1]), device="cpu")
    observations = np.linspace(-1.0, 1.0, 60, dtype=np.float32).reshape(20, 3)
    correction = model.predict_correction(observations)
    assert correction.shape == (20,)
    assert correction.std() > 0.0
    np.testing.assert_array_equal(loaded.predict_correction(observations), correction)
    np.testing.assert_array_equal(loaded._last_episode_steps, model._last_episode_steps)
    saved, restored = (m.correction_optimizer.state_dict()["state"] for m in (model, loaded))
    assert saved
    for index, state in saved.items():
        assert all(th.equal(th.as_tensor(value), th.as_tensor(restored[index][key])) for key, value in state.items())

    # both go on alike
    for m in (model, loaded):
        m.set_random_seed(7)
        m.set_env(vec_env(name, TASKS["discrete"][1]))
        m.env.seed(11)
        m.learn(2 * m.n_steps * m.n_envs, reset_num_timesteps=False)
    assert_same(loaded, model)
    np.testing.assert_array_equal(loaded.correction_weights, model.correction_weights)


# Invariant 7: weights are weights


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("reward, gamma", [(1e8, 0.01), (1e8, 0.9999), (0.0, 0.01)])
@pytest.mark.parametrize("name", REST)
def test_weights_are_finite_and_not_negative(name: str, reward: float, gamma: float, correction: str) -> None:
    env = vec_env(name, lambda: ClockEnv(length=40, reward=reward))
    settings = {**FAMILY[name].settings, "gamma": gamma, "correction": correction, "correction_shrinkage": False}
    model = learned(FAMILY[name].ours(policy_name(name), env, seed=0, device="cpu", **settings), 4)
    assert model.correction_weights.shape == (24, 2)
    assert np.isfinite(model.correction_weights).all()
    assert (model.correction_weights >= 0.0).all()
    if model.normalize_correction:
        assert model.correction_weights.mean() == pytest.approx(1.0, rel=1e-4)
    assert all(th.isfinite(p).all() for p in model.policy.parameters())


# Masks


@pytest.mark.parametrize("correction", ["averaging", "power"])
def test_masks_are_respected(correction: str) -> None:
    # MaskedEnv raises at an invalid action
    model = learned(make("ppo_mask", True, "masked", correction=correction, correction_shrinkage=False), 4)
    assert model.correction_weights.std() > 0.0
    masks = model.rollout_buffer.action_masks.reshape(-1, 3).astype(bool)
    assert masks.sum(axis=1).tolist() == [2] * 48
    actions, _ = model.predict(np.zeros((48, 3), dtype=np.float32), action_masks=masks)
    assert masks[np.arange(48), actions].all()


def test_masks_can_be_left_out() -> None:
    model = make("ppo_mask", True, "discrete")
    model.learn(96, use_masking=False)
    assert (model.rollout_buffer.action_masks == 1.0).all()
    with pytest.raises(AssertionError, match="an invalid action"):
        make("ppo_mask", True, "masked").learn(96, use_masking=False)


# Memory

LSTMS: dict[str, dict[str, Any]] = {
    "own": {},
    "two layers": {"n_lstm_layers": 2},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "none for the critic": {"enable_critic_lstm": False},
    "own extractors": {"share_features_extractor": False, "features_extractor_class": LinearExtractor},
}


def rollout_of(model: Any) -> tuple[Any, ...]:
    """What the critic saw of a rollout that is not trained on, how it valued it, and its memory."""
    model.train = lambda: None
    learned(model, 1)
    buffer = model.rollout_buffer
    return model._critic_inputs(), buffer.values, buffer.hidden_states_vf, buffer.cell_states_vf


@pytest.mark.parametrize("lstm", LSTMS.values(), ids=LSTMS)
@pytest.mark.parametrize("task", ["discrete", "dict"])
def test_memory_is_the_critics(lstm: dict[str, Any], task: str) -> None:
    if task == "dict" and "features_extractor_class" in lstm:
        lstm = {"share_features_extractor": False}
    model = make("ppo_recurrent", True, task, policy_kwargs={**SMALL_LSTM, **lstm})
    inputs, values, hidden, cell = rollout_of(model)
    with th.no_grad():
        np.testing.assert_allclose(model.policy.predict_values(*inputs).numpy().reshape(values.shape), values, atol=1e-6)

    # and the same memory is had step by step, from outside
    observations, _, starts = inputs
    state = None
    for step in range(model.n_steps):
        rows = slice(2 * step, 2 * step + 2)
        if task == "dict":  # the buffer gives a Discrete observation an axis more
            spaces_of = model.observation_space.spaces
            obs = {key: value[rows].numpy().reshape(2, *spaces_of[key].shape) for key, value in observations.items()}
        else:
            obs = observations[rows].numpy()
        if step > 0 and lstm.get("enable_critic_lstm", True) | lstm.get("shared_lstm", False):
            np.testing.assert_allclose(state, (hidden[step], cell[step]), atol=1e-6)
        state = model.next_critic_state(obs, state, starts[rows].numpy())


def test_correction_sees_the_memory() -> None:
    # The observation is always the same: only a memory can tell the time.
    def weights_and_powers(model: Any) -> tuple[np.ndarray, np.ndarray]:
        learned(model, 2)
        return model.correction_weights.flatten(), model.rollout_buffer.discount_powers.flatten()

    options: dict[str, Any] = {
        "gamma": 0.7,
        "n_steps": 64,
        "correction_epochs": 60,
        "correction_learning_rate": 1e-2,
        "correction_lambda": 1.0,
        "correction_shrinkage": False,
        "seed": 0,
        "device": "cpu",
    }
    blind, _ = weights_and_powers(AveragingPPO("MlpPolicy", ClockEnv(length=8, tells=False), **options))
    np.testing.assert_allclose(blind, 1.0, atol=1e-5)
    model = AveragingRecurrentPPO(
        "MlpLstmPolicy", ClockEnv(length=8, tells=False), policy_kwargs={"lstm_hidden_size": 16}, **options
    )
    weights, powers = weights_and_powers(model)
    assert np.corrcoef(weights, powers)[0, 1] > 0.95

    observation = np.ones((1, 1), dtype=np.float32)
    state, corrections = None, []
    for _ in range(8):
        corrections.append(model.predict_correction(observation, state).item())
        state = model.next_critic_state(observation, state)
    assert corrections[0] > corrections[2] > corrections[7]
    # an episode's start forgets the state
    assert model.predict_correction(observation, state, np.array([True])).item() == pytest.approx(corrections[0], rel=1e-5)
    assert model.predict_correction(observation, state).item() < corrections[2]
    with pytest.raises(ValueError, match=r"state has the shapes .* must be of shape \(1, 1, 16\)"):
        model.predict_correction(observation, (np.zeros((1, 2, 16)), np.zeros((1, 2, 16))))


def test_recurrent_power_predicts_nothing() -> None:
    model = make("ppo_recurrent", True, "discrete", correction="power")
    with pytest.raises(ValueError, match="predict_correction"):
        model.predict_correction(np.zeros((1, 3), dtype=np.float32))


# Direction


class BlindActor(MlpExtractor):
    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        return super().forward_actor(th.zeros_like(features))


def blind(policy_class: Any) -> Any:
    """A policy of this kind whose actor cannot tell the states apart: its logits are the last layer's bias."""

    class Blind(policy_class):
        def _build_mlp_extractor(self) -> None:
            dim = getattr(self, "lstm_output_dim", self.features_dim)
            self.mlp_extractor = BlindActor(dim, self.net_arch, self.activation_fn, self.device)

    return Blind


GAMMA, THETA = 0.5, -0.5


def step_of_theta(name: str, seed: int, correction: str | None) -> float:
    """Change of θ = logit of "top" minus that of "bottom" in one update on one rollout, with exact advantages."""
    member = FAMILY[name]
    alias = policy_name(name)
    policy_kwargs: dict[str, Any] = {"net_arch": {"pi": [], "vf": [16]}}
    if name == "ppo_recurrent":
        policy_kwargs["lstm_hidden_size"] = 8
    options: dict[str, Any] = {"normalize_advantage": False} if name != "reinforce" else {}
    if correction == "averaging":
        # enough of a fit for one rollout of two states
        options |= {"correction_epochs": 40, "correction_batch_size": 64, "correction_learning_rate": 1e-2}
    model = member.ours(
        blind(member.theirs.policy_aliases[alias]),
        vec_env(name, lambda: gym.wrappers.TimeLimit(TwoStateEnv(), 20), n_envs=8),
        n_steps=40,
        gamma=GAMMA,
        seed=seed,
        device="cpu",
        correction=correction,
        policy_kwargs=policy_kwargs,
        **member.one_update,
        **options,
    )
    bias = model.policy.action_net.bias
    with th.no_grad():
        bias[TOP], bias[1 - TOP] = THETA, 0.0

    probability = 1.0 / (1.0 + np.exp(-THETA))
    policy = np.zeros((2, 2))
    policy[:, TOP], policy[:, 1 - TOP] = probability, 1.0 - probability
    mdp = TwoStateEnv().finite_mdp(GAMMA)
    advantages = mdp.q(policy) - mdp.v(policy)[:, None]
    train = model.train

    def train_on_exact_advantages() -> None:
        buffer = model.rollout_buffer
        states, actions = buffer.observations.argmax(-1), buffer.actions[..., 0].astype(int)
        buffer.advantages = advantages[states, actions].astype(np.float32)
        train()

    model.train = train_on_exact_advantages
    model.learn(320)
    return float((bias[TOP] - bias[1 - TOP]).detach()) - THETA


@pytest.mark.parametrize("name", FAMILY)
def test_direction(name: str) -> None:
    # ∇J points to "top" (both rows of the tabular gradient belong to the one parameter)
    policy = np.full((2, 2), 1.0 / (1.0 + np.exp(THETA)))
    policy[:, TOP] = 1.0 - policy[:, TOP]
    assert TwoStateEnv().finite_mdp(GAMMA).gradient(policy)[:, TOP].sum() > 0.0
    for correction in ("averaging", "power"):
        steps = [step_of_theta(name, seed, correction) for seed in range(4)]
        assert min(steps) > 1e-5, (correction, steps)
    uncorrected: list[float] = []
    while not (uncorrected and min(uncorrected) < -1e-5 and max(uncorrected) > 1e-5):
        assert len(uncorrected) < 10, uncorrected  # all to one side has probability 0.002
        uncorrected.append(step_of_theta(name, len(uncorrected), None))


# The interface


@pytest.mark.parametrize("name", FAMILY)
def test_takes_the_algorithms_arguments(name: str) -> None:
    member = FAMILY[name]
    theirs = inspect.signature(member.theirs).parameters
    ours = inspect.signature(member.ours).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[key].default == parameter.default for key, parameter in theirs.items())
    assert {"correction", "correction_network", "critic_epochs"} <= ours.keys()
    assert ":param correction:" in member.ours.__doc__
    assert ":param learning_rate:" in member.ours.__doc__


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "reinforce"])
def test_learn_only_passes_on(name: str) -> None:
    member = FAMILY[name]
    ours, theirs = (inspect.signature(cls.learn).parameters for cls in (member.ours, member.theirs))
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        expected = member.ours.__name__ if key == "tb_log_name" else parameter.default
        assert ours[key].default == expected
