"""What answers SB3's calls during an update, against the originals."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.lean_update import applied, lean_update, plain_layers

ENVS = {"gaussian": "Pendulum-v1", "categorical": "CartPole-v1"}


def policy_for(env: str, **kwargs: Any) -> tuple[ActorCriticPolicy, th.Tensor, th.Tensor]:
    """A policy with trained optimiser state and fused Adam, observations and actions."""
    model = AveragingPPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu", **kwargs)
    model.learn(64)
    made = gym.make(env)
    rng = np.random.default_rng(0)
    observations = th.as_tensor(rng.normal(size=(40, *made.observation_space.shape)), dtype=th.float32)
    made.action_space.seed(0)
    actions = th.as_tensor(np.array([made.action_space.sample() for _ in range(40)]))
    return model.policy, observations, actions


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS.keys())
@pytest.mark.parametrize("shared", [True, False])
def test_evaluation_and_its_gradient(env: str, shared: bool) -> None:
    policy, observations, actions = policy_for(env, policy_kwargs={"share_features_extractor": shared})

    def evaluated() -> tuple[list[th.Tensor], list[th.Tensor]]:
        outputs = list(policy.evaluate_actions(observations, actions))
        loss = sum((i + 1.0) * output.square().mean() for i, output in enumerate(outputs))
        return outputs, list(th.autograd.grad(loss, list(policy.parameters())))

    expected = evaluated()
    with lean_update(policy, evaluation=True):
        assert "evaluate_actions" in vars(policy)
        lean = evaluated()
    for a, b in zip(expected[0] + expected[1], lean[0] + lean[1], strict=True):
        assert a.shape == b.shape
        th.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_impossible_actions_have_no_part_in_the_entropy() -> None:
    """Logits of minus infinity, as of a policy that masks actions."""
    policy, observations, _ = policy_for("CartPole-v1")
    with th.no_grad():
        policy.action_net.weight[1] = 0.0
        policy.action_net.bias[1] = -th.inf
    actions = th.zeros(len(observations))
    expected = policy.evaluate_actions(observations, actions)[2]
    with lean_update(policy, evaluation=True):
        entropy = policy.evaluate_actions(observations, actions)[2]
        gradient = th.autograd.grad(entropy.sum(), policy.action_net.weight)[0]
    th.testing.assert_close(entropy, expected)
    assert th.isfinite(gradient).all()


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS.keys())
@pytest.mark.parametrize("max_norm", [1e-3, 0.5, float("inf")])
@pytest.mark.parametrize("critic_learning_rate", [None, 0.01])
def test_gradient_step(env: str, max_norm: float, critic_learning_rate: float | None) -> None:
    """zero_grad, clipping and Adam's step: the same parameters and optimiser state as without."""
    policy, observations, actions = policy_for(env, critic_learning_rate=critic_learning_rate)
    twin = copy.deepcopy(policy)

    def steps(p: ActorCriticPolicy) -> list[float]:
        norms = []
        for scale in (1.0, 30.0):
            value, log_prob, entropy = p.evaluate_actions(observations, actions)
            loss = scale * (value.mean() + log_prob.mean()) - entropy.mean()
            p.optimizer.zero_grad()
            loss.backward()
            norms.append(float(th.nn.utils.clip_grad_norm_(p.parameters(), max_norm)))
            p.optimizer.step()
        return norms

    with lean_update(policy, evaluation=False):
        assert "step" in vars(policy.optimizer)
        lean = steps(policy)
    assert lean == pytest.approx(steps(twin), rel=1e-6)
    for a, b in zip(policy.parameters(), twin.parameters(), strict=True):
        th.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    mine, other = policy.optimizer.state_dict()["state"], twin.optimizer.state_dict()["state"]
    assert mine.keys() == other.keys()
    for index, state in mine.items():
        for name, value in state.items():
            th.testing.assert_close(value, other[index][name], rtol=1e-5, atol=1e-10)


def test_parameter_without_gradient_is_left_out() -> None:
    policy, observations, actions = policy_for("CartPole-v1")
    before = copy.deepcopy(policy.value_net.state_dict())
    with lean_update(policy, evaluation=True):
        _, log_prob, _ = policy.evaluate_actions(observations, actions)
        policy.optimizer.zero_grad()
        log_prob.mean().backward()
        policy.optimizer.step()
    for name, value in policy.value_net.state_dict().items():
        assert th.equal(value, before[name])


def test_everything_is_put_back_even_after_an_error() -> None:
    policy, _, _ = policy_for("CartPole-v1")
    clip = th.nn.utils.clip_grad_norm_
    before = set(vars(policy)), set(vars(policy.optimizer))

    def fail() -> None:
        with lean_update(policy, evaluation=True):
            assert th.nn.utils.clip_grad_norm_ is not clip
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert th.nn.utils.clip_grad_norm_ is clip
    assert (set(vars(policy)), set(vars(policy.optimizer))) == before


def test_other_calls_of_clipping_reach_torch() -> None:
    policy, _, _ = policy_for("CartPole-v1")
    weights = [th.nn.Parameter(th.tensor([3.0, -4.0]))]
    weights[0].grad = th.tensor([3.0, -4.0])
    with lean_update(policy, evaluation=True):
        assert float(th.nn.utils.clip_grad_norm_(weights, 1.0, norm_type=1.0)) == pytest.approx(7.0)
        assert float(th.nn.utils.clip_grad_norm_([th.nn.Parameter(th.ones(2))], 1.0)) == 0.0


@pytest.mark.parametrize("optimizer", [th.optim.SGD, th.optim.RMSprop])
def test_other_optimisers_keep_their_step(optimizer: type[th.optim.Optimizer]) -> None:
    model = AveragingPPO(
        "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, device="cpu", policy_kwargs={"optimizer_class": optimizer}
    )
    with lean_update(model.policy, evaluation=True):
        assert "step" not in vars(model.policy.optimizer)
    model.learn(32)


def test_a_policys_own_evaluation_is_used() -> None:
    calls = []

    class Own(ActorCriticPolicy):
        def evaluate_actions(self, obs: Any, actions: th.Tensor) -> Any:
            calls.append(len(actions))
            return super().evaluate_actions(obs, actions)

    AveragingPPO(Own, "CartPole-v1", n_steps=32, batch_size=32, n_epochs=2, device="cpu").learn(32)
    assert calls.count(32) >= 2


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS.keys())
def test_training_follows_sb3(env: str) -> None:
    """Three updates with weights of 1 end where SB3's PPO does, to rounding."""
    kwargs: dict[str, Any] = {"n_steps": 64, "batch_size": 32, "n_epochs": 3, "seed": 3, "device": "cpu", "gamma": 0.99}
    plain = PPO("MlpPolicy", env, **kwargs)
    plain.learn(192)
    lean = AveragingPPO("MlpPolicy", env, **kwargs)
    lean._weights = lambda rollout: np.ones(lean.rollout_buffer.rewards.shape, dtype=np.float32)  # type: ignore[method-assign]
    lean.learn(192)
    for (name, a), b in zip(plain.policy.state_dict().items(), lean.policy.state_dict().values(), strict=True):
        th.testing.assert_close(a, b, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_layers_as_functions_give_the_same_to_the_bit() -> None:
    class Doubled(th.nn.Tanh):
        def forward(self, x: th.Tensor) -> th.Tensor:
            return 2.0 * super().forward(x)

    hooked = th.nn.Linear(8, 8)
    hooked.register_forward_hook(lambda module, inputs, output: output + 1.0)
    net = th.nn.Sequential(
        th.nn.Linear(5, 8), th.nn.Tanh(), th.nn.Sequential(th.nn.Linear(8, 8, bias=False), th.nn.ReLU()), Doubled(), hooked
    )
    x = th.randn(7, 5)
    layers = plain_layers(net)
    assert len(layers) == 6
    assert th.equal(applied(layers, x), net(x))
    with th.no_grad():
        net[0].weight.mul_(-1.5)  # as an optimiser's step does, in place
    assert th.equal(applied(layers, x), net(x))
