"""Fitting the correction and the critic never changes what the actor does (invariant 3)."""

from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import policy_for, space_env
from family import FAMILY, make_with, on_update, vec_env
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor

#: ways in which something is fitted
FITS: dict[str, dict[str, Any]] = {
    "separate": {"correction_network": "separate"},
    "shared": {"correction_network": "shared"},
    "critic, after": {"correction_network": "separate", "correction_order": "after", "critic_epochs": 2, "critic_lambda": 1.0},
}


class LinearExtractor(FlattenExtractor):
    """A features extractor with parameters."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space)
        self.linear = th.nn.Linear(self.features_dim, self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.linear(super().forward(observations))


@th.no_grad()
def logits(model: Any) -> th.Tensor:
    """What the actor makes of the rollout's observations."""
    obs: Any = model._critic_inputs()[0]
    if hasattr(model, "_last_lstm_states"):
        n = len(obs)
        state = th.linspace(-1.0, 1.0, 8 * n).reshape(1, n, 8)
        return model.policy.get_distribution(obs, (state, state), th.zeros(n))[0].distribution.logits
    return model.policy.get_distribution(obs).distribution.logits


def parameters(module: th.nn.Module) -> th.Tensor:
    return th.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def fitted_alone(name: str, kind: str, fit: dict[str, Any], **policy_kwargs: Any) -> tuple[bool, bool, bool]:
    """
    Train a model whose algorithm does nothing, so that all change is the fits'.

    :return: whether the actor, the value function and the correction have changed
    """
    settings = dict(FAMILY[name].settings)
    policy_kwargs = {**settings.pop("policy_kwargs", {}), **policy_kwargs}
    env = vec_env(name, lambda: space_env(kind))
    model = make_with(on_update(name, None, then_train=False), name, env, kind, policy_kwargs=policy_kwargs, **fit)
    _, callback = model._setup_learn(1000)
    arguments = {"use_masking": True} if name == "ppo_mask" else {}
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps, **arguments)
    inputs = model._critic_inputs()

    def outputs() -> list[th.Tensor]:
        with th.no_grad():
            return [logits(model), model.policy.predict_values(*inputs), parameters(model.correction_net)]

    before = outputs()
    model.train()
    assert all(p.grad is None for p in model.policy.parameters()), "no gradient is left for the algorithm's own update"
    actor, critic, correction = (not th.equal(a, b) for a, b in zip(before, outputs(), strict=True))
    return actor, critic, correction


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", FAMILY)
def test_fits_leave_the_actor_alone(name: str, share: bool, fit: str) -> None:
    options = {"features_extractor_class": LinearExtractor, "share_features_extractor": share}
    actor, critic, correction = fitted_alone(name, "box", FITS[fit], **options)
    assert not actor
    assert correction
    # the critic's own layers are changed by the shared fit and by critic_epochs, not by a separate fit
    assert critic == (fit != "separate")


@pytest.mark.parametrize("fit", ["shared", "critic, after"])
@pytest.mark.parametrize("kind", ["image", "dict_image"])
def test_with_a_convolutional_network_for_both(kind: str, fit: str) -> None:
    assert policy_for(kind) != "MlpPolicy"
    assert fitted_alone("ppo", kind, {**FITS[fit], "n_steps": 12}) == (False, True, True)


class SharedLayer(th.nn.Module):
    """A user's network in which actor and critic share a layer."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = 8
        self.both, self.own = th.nn.Linear(features, 8), th.nn.Linear(8, 8)

    def forward_actor(self, x: th.Tensor) -> th.Tensor:
        return th.tanh(self.both(x))

    def forward_critic(self, x: th.Tensor) -> th.Tensor:
        return th.tanh(self.own(th.tanh(self.both(x))))

    def forward(self, x: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return self.forward_actor(x), self.forward_critic(x)


class SharedLayerPolicy(ActorCriticPolicy):
    """A policy with a :class:`SharedLayer`."""

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = SharedLayer(self.features_dim)  # type: ignore[assignment]


def test_with_a_layer_for_both() -> None:
    cls = on_update("ppo", None, then_train=False)
    env = vec_env("ppo", lambda: space_env("box"))
    model = cls(SharedLayerPolicy, env, n_steps=16, batch_size=16, device="cpu", correction_network="shared", critic_epochs=2)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(64)
    changed = {
        name.rpartition(".")[0] for name, value in model.policy.state_dict().items() if not th.equal(value, before[name])
    }
    assert changed == {"mlp_extractor.own", "value_net"}


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_dropout_draws_nothing_in_the_fit(name: str) -> None:
    # as SB3 collects and predicts: dropout is for the algorithm's own update
    class Dropout(LinearExtractor):
        def forward(self, observations: th.Tensor) -> th.Tensor:
            return th.nn.functional.dropout(super().forward(observations), 0.5, self.training)

    env = vec_env(name, lambda: space_env("box"))
    model = make_with(
        on_update(name, None, then_train=False),
        name,
        env,
        policy_kwargs={"features_extractor_class": Dropout},
        critic_epochs=1,
    )
    model.policy.set_training_mode(True)
    _, callback = model._setup_learn(1000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    before = th.get_rng_state()
    model.train()
    np.testing.assert_array_equal(th.get_rng_state(), before)
