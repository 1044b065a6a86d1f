"""What SB3's documentation shows for PPO and A2C works with only the class name changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import policy_for, space_env
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from sb3_avgcorr import AveragingA2C, AveragingPPO

BOTH = pytest.mark.parametrize("cls", [AveragingPPO, AveragingA2C])
THEIRS: dict[type, type] = {AveragingPPO: PPO, AveragingA2C: A2C}


def make(cls: Any, env: Any = "CartPole-v1", policy: Any = "MlpPolicy", **options: Any) -> Any:
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 2} if cls is AveragingPPO else {"n_steps": 16}
    return cls(policy, env, **{"seed": 0, "device": "cpu", **settings, **options})


# Quick start and examples


def test_evaluate_policy_and_multiprocessing() -> None:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=SubprocVecEnv)
    try:
        model = make(AveragingPPO, env).learn(128)
        assert model.correction_weights.shape == (32, 2)
    finally:
        env.close()
    mean, std = evaluate_policy(model, Monitor(gym.make("CartPole-v1")), n_eval_episodes=2)
    assert mean > 0.0
    assert std >= 0.0


def test_vec_normalize_is_saved_and_loaded(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2), norm_obs=True, norm_reward=True, clip_obs=10.0)
    model = make(AveragingPPO, env).learn(128)
    model.save(tmp_path / "model")
    env.save(str(tmp_path / "normalize.pkl"))
    env = VecNormalize.load(str(tmp_path / "normalize.pkl"), make_vec_env("Pendulum-v1", n_envs=2))
    loaded = AveragingPPO.load(tmp_path / "model", env=env)
    assert loaded.get_vec_normalize_env() is env
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 192


def test_frame_stack_of_images() -> None:
    env = VecFrameStack(make_vec_env(lambda: space_env("image"), n_envs=2), n_stack=4)
    model = make(AveragingA2C, env, "CnnPolicy", n_steps=8).learn(32)
    assert model.predict_correction(env.reset()).shape == (2,)


# Callbacks


@BOTH
def test_callbacks_see_what_sb3_shows_them(cls: Any) -> None:
    seen: dict[str, Any] = {}

    class Custom(BaseCallback):
        def _on_training_start(self) -> None:
            seen["start"] = self.model.num_timesteps

        def _on_rollout_start(self) -> None:
            seen["rollouts"] = seen.get("rollouts", 0) + 1

        def _on_step(self) -> bool:
            for name in (
                "new_obs",
                "rewards",
                "dones",
                "infos",
                "actions",
                "clipped_actions",
                "obs_tensor",
                "env",
                "values",
                "log_probs",
            ):
                assert self.locals[name] is not None
            assert len(self.locals["infos"]) == len(self.locals["dones"]) == self.training_env.num_envs
            self.logger.record("custom/value", 1.0)
            return True

        def _on_rollout_end(self) -> None:
            buffer = self.locals["rollout_buffer"]
            assert buffer.full
            assert np.isfinite(buffer.advantages).all()
            assert buffer.values.any()
            assert buffer.log_probs.all()
            seen["rollout_ends"] = seen.get("rollout_ends", 0) + 1

        def _on_training_end(self) -> None:
            seen["end"] = self.model.num_timesteps

    every = EveryNTimesteps(n_steps=32, callback=Custom())
    model = make(cls, make_vec_env("CartPole-v1", n_envs=2))
    steps = 2 * model.n_steps * 2
    model.learn(steps, CallbackList([Custom(), every]))
    assert seen == {"start": 0, "rollouts": 2 * 1, "rollout_ends": 2, "end": steps}


# Custom networks, as in the documentation


class CustomCombinedExtractor(BaseFeaturesExtractor):
    """A features extractor with parameters, for Dict observations."""

    def __init__(self, observation_space: spaces.Dict, size: int = 6) -> None:
        super().__init__(observation_space, features_dim=size)
        self.linear = nn.Linear(3 + 3, size)

    def forward(self, observations: dict[str, th.Tensor]) -> th.Tensor:
        return self.linear(th.cat([observations["vector"], observations["kind"].flatten(1)], dim=1))


class CustomNetwork(nn.Module):
    """The documentation's network for policy and value function, which takes the place of mlp_extractor."""

    def __init__(self, feature_dim: int, last_layer_dim_pi: int = 16, last_layer_dim_vf: int = 12) -> None:
        super().__init__()
        self.latent_dim_pi = last_layer_dim_pi
        self.latent_dim_vf = last_layer_dim_vf
        self.policy_net = nn.Sequential(nn.Linear(feature_dim, last_layer_dim_pi), nn.ReLU())
        self.value_net = nn.Sequential(nn.Linear(feature_dim, last_layer_dim_vf), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, features: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        return self.policy_net(features)

    def forward_critic(self, features: th.Tensor) -> th.Tensor:
        return self.value_net(features)


class CustomPolicy(ActorCriticPolicy):
    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Callable[[float], float],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        kwargs["ortho_init"] = False
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = CustomNetwork(self.features_dim)  # type: ignore[assignment]


class TemperedPolicy(ActorCriticPolicy):
    """A policy that changes how its distribution is made."""

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        return self.action_dist.proba_distribution(action_logits=self.action_net(latent_pi) * 0.0 + th.tensor([50.0, -50.0]))


class RescaledPolicy(ActorCriticPolicy):
    """A policy that changes the features that actor and critic see."""

    def extract_features(self, obs: Any, features_extractor: Any = None) -> Any:
        features = super().extract_features(obs, features_extractor)
        return tuple(-100.0 * f for f in features) if isinstance(features, tuple) else -100.0 * features


@pytest.mark.parametrize("policy", [ActorCriticPolicy, CustomPolicy, TemperedPolicy, RescaledPolicy])
@BOTH
def test_first_rollout_is_sb3s_with_any_policy(cls: Any, policy: Any) -> None:
    # before the first update the policies are the same, and so must be what they do, whatever a user overrides
    taken: dict[Any, list[np.ndarray]] = {}
    for each in (cls, THEIRS[cls]):
        taken[each] = []
        settings = {"n_steps": 32, "seed": 0, "device": "cpu"}
        policy_kwargs = {"net_arch": [], "ortho_init": False}
        model = each(policy, "CartPole-v1", policy_kwargs=policy_kwargs, **settings)
        model.learn(32, lambda local, _, note=taken[each]: note.append(local["actions"].copy()) or True)
        buffer = model.rollout_buffer
        taken[each] += [np.sort(buffer.log_probs.flatten()), np.sort(buffer.values.flatten())]
    for ours, theirs in zip(taken[cls], taken[THEIRS[cls]], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("network", ["shared", "separate"])
@BOTH
def test_custom_features_extractor(cls: Any, network: str, share: bool) -> None:
    model = make(
        cls,
        space_env("dict"),
        policy_for("dict"),
        correction_network=network,
        critic_learning_rate=1e-3,
        policy_kwargs={
            "features_extractor_class": CustomCombinedExtractor,
            "features_extractor_kwargs": {"size": 5},
            "share_features_extractor": share,
        },
    )
    model.learn(128)
    assert np.isfinite(model.correction_weights).all()


@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {"net_arch": [8]},
        {"net_arch": []},
        {"net_arch": {"pi": [8], "vf": []}},
        {"net_arch": {"pi": [], "vf": [16, 8]}, "activation_fn": nn.ReLU},
        {"optimizer_class": th.optim.AdamW, "optimizer_kwargs": {"weight_decay": 1e-3}},
        {"optimizer_class": th.optim.SGD},
        {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}},
        {"log_std_init": -2.0, "ortho_init": False},
    ],
)
@BOTH
def test_policy_kwargs(cls: Any, policy_kwargs: dict[str, Any]) -> None:
    for options in ({}, {"correction_network": "separate", "critic_learning_rate": 1e-3}):
        model = make(cls, "Pendulum-v1", policy_kwargs=policy_kwargs, **options).learn(64)
        assert np.isfinite(model.correction_weights).all()


# Schedules, continued training, loading


def linear_schedule(initial: float) -> Callable[[float], float]:
    return lambda progress_remaining: progress_remaining * initial


@BOTH
def test_schedules(cls: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"learning_rate": linear_schedule(0.001), "correction_learning_rate": linear_schedule(0.002)}
    if cls is AveragingPPO:
        options |= {"clip_range": linear_schedule(0.2), "clip_range_vf": 0.5, "target_kl": 0.01}
    model = make(cls, **options)
    model.learn(4 * model.n_steps)
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.0, "all progress is made at the last update"
    assert model.correction_optimizer.param_groups[0]["lr"] == 0.0
    model.save(tmp_path / "model")
    custom = {"learning_rate": 0.5, "lr_schedule": lambda _: 0.5, "correction_learning_rate": 0.25}
    loaded = cls.load(tmp_path / "model", env=gym.make("CartPole-v1"), custom_objects=custom)
    loaded.learn(model.n_steps)
    assert loaded.policy.optimizer.param_groups[0]["lr"] == 0.5
    assert loaded.correction_optimizer.param_groups[0]["lr"] == 0.25


def test_correction_learning_rate_follows_the_algorithms() -> None:
    model = make(AveragingPPO, learning_rate=0.0123, correction_learning_rate=None).learn(32)
    assert model.correction_optimizer.param_groups[0]["lr"] == 0.0123


@pytest.mark.parametrize("correction", ["averaging", "power"])
def test_target_kl_stops_the_update(correction: Any) -> None:
    updates = [
        make(AveragingPPO, target_kl=target_kl, n_epochs=20, learning_rate=0.01, correction=correction).learn(32)._n_updates
        for target_kl in (None, 1e-5)
    ]
    assert updates[0] == 20
    assert updates[1] < 20


@BOTH
def test_set_env_and_get_env(cls: Any, tmp_path: Path) -> None:
    model = make(cls, make_vec_env("CartPole-v1", n_envs=2)).learn(64)
    model.save(tmp_path / "model")
    with pytest.raises(AssertionError, match=r"n_envs|num_envs|number of environments"):
        model.set_env(make_vec_env("CartPole-v1", n_envs=3))
    env = make_vec_env("CartPole-v1", n_envs=2)
    model.set_env(env)
    assert model.get_env() is env
    model.learn(64)
    loaded = cls.load(tmp_path / "model")
    assert loaded.get_env() is None
    loaded.set_env(env)
    loaded.learn(64, reset_num_timesteps=False)


# Logs

KEYS = {
    f"correction/{name}"
    for name in (
        "loss",
        "explained_variance",
        "weight_min",
        "weight_max",
        "weight_std",
        "effective_sample_size",
        "mean_episode_step",
    )
}


@BOTH
def test_tensorboard_logs(cls: Any, tmp_path: Path) -> None:
    model = make(cls, tensorboard_log=str(tmp_path))
    model.learn(4 * model.n_steps, log_interval=1)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"{cls.__name__}_1"
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= KEYS
