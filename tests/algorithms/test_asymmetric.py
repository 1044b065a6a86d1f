"""AsymmetricActorCriticPolicy: the actor sees its keys only, critic and correction see all, and the rest is SB3's."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import SPACES, SpaceEnv, space_env
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.policies import MultiInputActorCriticPolicy

from sb3_avgcorr import (
    BAC,
    AsymmetricActorCriticPolicy,
    AveragingA2C,
    AveragingBAC,
    AveragingPPO,
    AveragingTRPO,
)
from sb3_avgcorr.common.critic import critic_layers

CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (AveragingPPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}),
    "a2c": (AveragingA2C, {"n_steps": 32}),
    "bac": (AveragingBAC, {"n_steps": 32}),
    "plain_bac": (BAC, {"n_steps": 32}),
    "sb3_ppo": (PPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}),
    "sb3_a2c": (A2C, {"n_steps": 32}),
    "trpo": (AveragingTRPO, {"n_steps": 32, "batch_size": 32}),
}


def make(name: str, actor_keys: Any = ("vector",), kind: str = "dict", policy_kwargs: Any = None, **kwargs: Any) -> Any:
    cls, settings = CLASSES[name]
    policy_kwargs = {"actor_keys": actor_keys, **(policy_kwargs or {})}
    env = kwargs.pop("env", None) or space_env(kind)
    return cls(AsymmetricActorCriticPolicy, env, policy_kwargs=policy_kwargs, seed=0, device="cpu", **{**settings, **kwargs})


def batch(n: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"vector": rng.uniform(-1, 1, (n, 3)).astype(np.float32), "kind": rng.integers(3, size=n)}


def with_other(observation: dict[str, np.ndarray], key: str) -> dict[str, np.ndarray]:
    return {**observation, key: np.roll(observation[key] + (key == "vector"), 1, axis=0)}


def logits_and_values(model: Any, observation: dict[str, np.ndarray]) -> tuple[th.Tensor, th.Tensor]:
    tensor, _ = model.policy.obs_to_tensor(observation)
    with th.no_grad():
        return model.policy.get_distribution(tensor).distribution.logits, model.policy.predict_values(tensor)


@pytest.mark.parametrize("name", CLASSES)
def test_the_actor_sees_its_keys_and_the_critic_all(name: str) -> None:
    model = make(name)
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.learn(64)
    moved = {key.split(".weight")[0] for key, value in model.policy.state_dict().items() if not th.equal(value, before[key])}
    assert {"mlp_extractor.policy_net.0", "mlp_extractor.value_net.0", "action_net", "value_net"} <= moved
    observation = batch()
    logits, values = logits_and_values(model, observation)
    other_logits, other_values = logits_and_values(model, with_other(observation, "kind"))
    assert th.equal(logits, other_logits)
    assert not th.allclose(values, other_values)
    other_logits, other_values = logits_and_values(model, with_other(observation, "vector"))
    assert not th.allclose(logits, other_logits)
    assert not th.allclose(values, other_values)


@pytest.mark.parametrize("name", ["ppo", "a2c", "bac", "trpo"])
@pytest.mark.parametrize(("actor_keys", "expected"), [(("vector",), 1.0), (("vector", "kind"), 0.0)])
def test_before_anything_is_told_an_actor_that_sees_less_is_corrected(
    name: str, actor_keys: tuple[str, ...], expected: float, tmp_path: Path
) -> None:
    model = make(name, actor_keys, correction_strength="auto").learn(32)
    assert model.correction_strength_used == expected
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.get_env())
    assert loaded.learn(32).correction_strength_used == expected
    model = make(name, actor_keys, correction_strength="auto", correction=None).learn(32)
    np.testing.assert_array_equal(model.correction_weights, 1.0)


class TellsTime(SpaceEnv):
    """Only the hidden key, which tells the first half of an episode from the second, makes γ^t predictable."""

    def __init__(self) -> None:
        space = spaces.Dict({"vector": spaces.Box(-1.0, 1.0, (3,), np.float32), "kind": spaces.Discrete(3)})
        super().__init__(space, length=16)

    def _told(self, observation: Any) -> Any:
        return {**observation, "kind": np.int64(self.t >= 8)}

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return self._told(observation), info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return self._told(observation), *rest


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("name", ["ppo", "a2c", "bac", "trpo"])
def test_the_correction_sees_the_hidden_key(name: str, network: str) -> None:
    steps = {"n_steps": 256, "correction_epochs": 20, "correction_learning_rate": 1e-2}
    model = make(name, env=TellsTime(), gamma=0.8, correction_network=network, correction_shrinkage=False, **steps)
    model.learn(512)
    observation = batch()
    early = model.predict_correction({**observation, "kind": np.zeros(64, dtype=np.int64)})
    late = model.predict_correction({**observation, "kind": np.ones(64, dtype=np.int64)})
    # E[γ^t] of the first and of the second half of an episode differ by the factor 0.8^-8 = 6
    assert early.mean() > 2.5 * late.mean()


def test_hidden_keys_have_no_gradient() -> None:
    model = make("ppo")
    vector = th.rand(5, 3, requires_grad=True)
    kind = th.rand(5, 3, requires_grad=True)
    preprocessed = {"vector": vector, "kind": kind}  # as SB3 preprocesses them: the kind is one-hot
    policy = model.policy
    actor = policy.action_net(policy.mlp_extractor.forward_actor(policy.pi_features_extractor(preprocessed))).sum()
    critic = policy.value_net(policy.mlp_extractor.forward_critic(policy.vf_features_extractor(preprocessed))).sum()
    seen, hidden = th.autograd.grad(actor, (vector, kind), allow_unused=True)
    assert hidden is None  # not even part of the graph
    assert (seen != 0).any()
    assert all((gradient != 0).any() for gradient in th.autograd.grad(critic, (vector, kind)))
    # and no parameter of the actor has one from the critic, nor the other way round
    tensor, _ = policy.obs_to_tensor(batch(5))
    values, log_prob, _ = policy.evaluate_actions(tensor, th.zeros(5, dtype=th.long))
    names, parameters = zip(*policy.named_parameters(), strict=True)
    for output, own in (
        (values, ("value_net", "mlp_extractor.value_net")),
        (log_prob, ("action_net", "mlp_extractor.policy")),
    ):
        gradients = th.autograd.grad(output.sum(), parameters, allow_unused=True)
        reached = [name for name, gradient in zip(names, gradients, strict=True) if gradient is not None]
        assert reached
        assert all(name.startswith(own) for name in reached)


@pytest.mark.parametrize("name", ["ppo", "sb3_ppo"])
def test_with_all_keys_it_is_sb3s_policy(name: str) -> None:
    # one after the other: both seed the same global stream
    ours = make(name, ["kind", "vector"], policy_kwargs={"net_arch": [16]}).learn(64)
    cls, settings = CLASSES[name]
    theirs = cls(
        MultiInputActorCriticPolicy,
        space_env("dict"),
        policy_kwargs={"net_arch": [16], "share_features_extractor": False},
        seed=0,
        device="cpu",
        **settings,
    ).learn(64)
    state = theirs.policy.state_dict()
    assert state.keys() == ours.policy.state_dict().keys()
    assert all(th.equal(value, state[key]) for key, value in ours.policy.state_dict().items())


def test_the_actor_is_sb3s_on_an_environment_with_its_keys_only() -> None:
    policy = make("ppo").policy
    sub = spaces.Dict({"vector": copy.deepcopy(SPACES["dict"]["vector"])})
    theirs = MultiInputActorCriticPolicy(sub, policy.action_space, lambda _: 1e-3)
    shapes = {key: value.shape for key, value in theirs.state_dict().items() if "value_net" not in key}
    assert shapes == {key: value.shape for key, value in policy.state_dict().items() if "value_net" not in key}
    # orthogonal initialisation is that of the layer as it is, not of a part of a larger one
    weight = policy.mlp_extractor.policy_net[0].weight
    th.testing.assert_close(weight.T @ weight, 2.0 * th.eye(3), atol=1e-5, rtol=0)


def test_fast_path_draws_what_sb3s_loop_draws() -> None:
    fast = make("ppo").learn(64)
    slow = make("ppo", fast=False).learn(64)
    for key, value in slow.policy.state_dict().items():
        th.testing.assert_close(fast.policy.state_dict()[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["ppo", "a2c", "bac", "trpo", "sb3_ppo"])
def test_save_and_load(name: str, tmp_path: Path) -> None:
    model = make(name).learn(64)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=space_env("dict"), device="cpu")
    observation = batch()
    for one, two in zip(logits_and_values(model, observation), logits_and_values(loaded, observation), strict=True):
        assert th.equal(one, two)
    if hasattr(model, "predict_correction"):
        np.testing.assert_array_equal(model.predict_correction(observation), loaded.predict_correction(observation))
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 128
    # the policy alone, as SB3's bc-style use has it
    model.policy.save(tmp_path / "policy.pt")
    policy = AsymmetricActorCriticPolicy.load(tmp_path / "policy.pt", device="cpu")
    tensor, _ = policy.obs_to_tensor(observation)
    with th.no_grad():
        assert th.equal(policy.predict_values(tensor), logits_and_values(model, observation)[1])
    assert policy.actor_keys == ["vector"]


def test_predict_needs_only_the_actors_keys() -> None:
    model = make("ppo").learn(32)
    observation = batch()
    with_all, _ = model.predict(observation, deterministic=True)
    alone, _ = model.predict({"vector": observation["vector"]}, deterministic=True)
    np.testing.assert_array_equal(with_all, alone)
    one, _ = model.predict({"vector": observation["vector"][0]}, deterministic=True)
    assert one == alone[0]
    assert one.shape == ()


@pytest.mark.parametrize("actor_keys", [["vector"], ["image"]])
@pytest.mark.parametrize("network", ["shared", "separate"])
def test_images_on_either_side(actor_keys: list[str], network: str) -> None:
    extractor = {"features_extractor_kwargs": {"cnn_output_dim": 16}, "net_arch": {"pi": [], "vf": [8]}}
    model = make("ppo", actor_keys, "dict_image", policy_kwargs=extractor, correction_network=network, critic_epochs=1)
    model.learn(32)
    policy = model.policy
    assert (len(list(policy.pi_features_extractor.parameters())) > 0) == (actor_keys == ["image"])
    assert policy.vf_features_extractor.features_dim == policy.features_dim == 18
    assert policy.mlp_extractor.latent_dim_pi == policy.action_net.in_features == (16 if actor_keys == ["image"] else 2)
    assert np.isfinite(model.correction_weights).all()
    names = [name for name, p in policy.named_parameters() if any(p is q for q in critic_layers(policy))]
    prefixes = {name.rsplit(".", 1)[0] for name in names}
    assert prefixes == {"mlp_extractor.value_net.0", "value_net"}


def test_critic_learning_rate_takes_the_critics_own_extractor() -> None:
    extractor = {"features_extractor_kwargs": {"cnn_output_dim": 16}}
    model = make("ppo", ["image"], "dict_image", policy_kwargs=extractor, critic_learning_rate=0.0)
    frozen = {key: value.clone() for key, value in model.policy.vf_features_extractor.state_dict().items()}
    actor = {key: value.clone() for key, value in model.policy.pi_features_extractor.state_dict().items()}
    model.learn(32)
    assert all(th.equal(frozen[key], value) for key, value in model.policy.vf_features_extractor.state_dict().items())
    assert not all(th.equal(actor[key], value) for key, value in model.policy.pi_features_extractor.state_dict().items())


@pytest.mark.parametrize("actor_keys", [[], (), ["vecto"], ["vector", "color"], "vector", "kind"])
def test_wrong_keys(actor_keys: Any) -> None:
    with pytest.raises(ValueError, match=r"actor_keys=.* must be a list of one or more keys .*\['kind', 'vector'\]"):
        make("ppo", actor_keys)


def test_other_mistakes() -> None:
    with pytest.raises(ValueError, match=r"observation_space=Box.*actor_keys=\['x'\].*needs an environment with a Dict"):
        make("ppo", ["x"], "box")
    with pytest.raises(ValueError, match="share_features_extractor=True would show the actor"):
        make("ppo", policy_kwargs={"share_features_extractor": True})
    with pytest.raises(TypeError, match="actor_keys"):
        AveragingPPO(AsymmetricActorCriticPolicy, space_env("dict"), device="cpu")
