"""What of a policy is the critic's own, its learning rate, and passes that train it alone."""

from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, policy_for, space_env
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.critic import check_critic, critic_features, critic_layers, critic_parameters


def ppo(kind: str = "box", **options: Any) -> AveragingPPO:
    settings = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu", **options}
    return AveragingPPO(policy_for(kind), DummyVecEnv([lambda: space_env(kind)] * 2), **settings)


def names_of(policy: ActorCriticPolicy, parameters: list[th.nn.Parameter]) -> set[str]:
    names = {id(p): name for name, p in policy.named_parameters()}
    return {names[id(p)].rpartition(".")[0].split(".net")[0] for p in parameters}


@pytest.mark.parametrize("kind", ["box", "dict", "discrete"])
@pytest.mark.parametrize("share", [True, False])
def test_features_lead_to_the_value(kind: str, share: bool) -> None:
    policy = ppo(kind, policy_kwargs={"share_features_extractor": share}).policy
    obs, _ = policy.obs_to_tensor(space_env(kind).observation_space.sample())
    with th.no_grad():
        value = policy.value_net(policy.mlp_extractor.forward_critic(critic_features(policy, obs)))
        assert th.equal(value, policy.predict_values(obs))


@pytest.mark.parametrize("kind, share", [("box", True), ("image", True), ("image", False)])
def test_own_parameters(kind: str, share: bool) -> None:
    policy = ppo(kind, policy_kwargs={"share_features_extractor": share}, correction=None).policy
    layers, everything = names_of(policy, critic_layers(policy)), names_of(policy, critic_parameters(policy))
    expected = {"mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"} if kind == "box" else {"value_net"}
    assert layers == expected
    assert {name.split(".")[0] for name in everything - layers} == (set() if share else {"vf_features_extractor"})


def test_frozen_layers_are_left_alone() -> None:
    policy = PPO("MlpPolicy", "CartPole-v1", device="cpu").policy
    policy.value_net.requires_grad_(False)
    assert "value_net" not in names_of(policy, critic_layers(policy))


def test_a_policy_of_ones_own_is_tried() -> None:
    class Same(ActorCriticPolicy):
        def predict_values(self, obs: Any) -> th.Tensor:
            return super().predict_values(obs)

    class Other(ActorCriticPolicy):
        def predict_values(self, obs: Any) -> th.Tensor:
            return 2.0 * super().predict_values(obs) + 1.0

    for policy_class in (Same, Other):
        policy = PPO(policy_class, "CartPole-v1", device="cpu").policy
        state = th.get_rng_state()
        if policy_class is Other:
            with pytest.raises(TypeError, match=r"Other.predict_values\(\) does not come to"):
                check_critic(policy, lambda obs, policy=policy: critic_features(policy, obs))
        else:
            check_critic(policy, lambda obs, policy=policy: critic_features(policy, obs))
        assert th.equal(th.get_rng_state(), state)


# A learning rate of its own


def test_learning_rate_is_used() -> None:
    model = ppo(critic_learning_rate=0.0, correction=None)
    critic = critic_parameters(model.policy)
    before = [(p, p.detach().clone()) for p in model.policy.parameters()]
    model.learn(64)
    for p, old in before:
        assert th.equal(p, old) == any(p is q for q in critic)
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [3e-4, 0.0]
    assert model.logger.name_to_value["train/critic_learning_rate"] == 0.0


def test_learning_rate_is_a_schedule() -> None:
    model = ppo(critic_learning_rate=lambda progress: 0.5 + progress, learning_rate=lambda progress: 1e-3 * progress)
    model.learn(64)
    # the last of two updates starts with all steps done: no progress remains
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [0.0, 0.5]


def test_parameters_in_one_group_and_in_two_read_each_other() -> None:
    one, two = ppo(correction=None).learn(64), ppo(correction=None, critic_learning_rate=1e-3, seed=1).learn(64)
    for source, target in ((one, two), (two, one)):
        target.set_parameters(source.get_parameters())
        given, taken = source.get_parameters()["policy.optimizer"], target.get_parameters()["policy.optimizer"]
        th.testing.assert_close(taken["state"], given["state"], rtol=0.0, atol=0.0)
    # each moment is beside its own parameter
    moments = two.policy.optimizer.state
    assert all(moments[p]["exp_avg"].shape == p.shape for p in two.policy.parameters())


# Passes that train the critic alone


def test_vf_coef_zero_leaves_the_critic_to_critic_epochs() -> None:
    for epochs in (0, 4):
        model = ppo(vf_coef=0.0, correction=None, critic_epochs=epochs, critic_learning_rate=1e-2)
        before = [(p, p.detach().clone()) for p in critic_parameters(model.policy)]
        model.learn(64)
        assert all(th.equal(p, old) == (epochs == 0) for p, old in before)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_learns_its_monte_carlo_targets(n_envs: int) -> None:
    # reward 1 a step, episodes of 20, undiscounted: the value of t is 20 - t
    settings: dict[str, Any] = {"n_steps": 100, "batch_size": 100, "n_epochs": 1, "vf_coef": 0.0, "gamma": 1.0, "seed": 0}
    critic = {"critic_epochs": 40, "critic_learning_rate": 1e-2, "critic_lambda": 1.0}
    env = DummyVecEnv([lambda: ClockEnv(20)] * n_envs)
    model = AveragingPPO("MlpPolicy", env, device="cpu", **settings, **critic).learn(600 * n_envs)
    t = np.arange(20)
    with th.no_grad():
        values = model.policy.predict_values(th.as_tensor(t[:, None] / 20.0, dtype=th.float32)).numpy()[:, 0]
    assert np.abs(values - (20 - t)).mean() < 1.0
