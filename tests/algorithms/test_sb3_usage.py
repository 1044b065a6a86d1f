"""Everything that SB3's documentation shows for PPO and A2C works with only the class name changed."""

import csv
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, policy_for, space_env
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize
from torch import nn

from sb3_avgcorr import AveragingA2C, AveragingPPO

BOTH = pytest.mark.parametrize("cls", [AveragingPPO, AveragingA2C])
THEIRS: dict[type, type] = {AveragingPPO: PPO, AveragingA2C: A2C}


def make(cls: Any, env: Any = "CartPole-v1", policy: Any = "MlpPolicy", **options: Any) -> Any:
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 2} if cls is AveragingPPO else {"n_steps": 16}
    return cls(policy, env, **{"seed": 0, "device": "cpu", **settings, **options})


# The signature


@BOTH
def test_arguments_are_sb3s_in_the_same_order_with_the_same_defaults(cls: Any) -> None:
    ours = inspect.signature(cls).parameters
    theirs = inspect.signature(THEIRS[cls]).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(theirs) :])
    for name in ours:
        assert f":param {name}:" in cls.__doc__, f"{name} is not documented"


@BOTH
def test_methods_are_sb3s(cls: Any) -> None:
    checked = 0
    for name, method in inspect.getmembers(THEIRS[cls], inspect.isfunction):
        ours = inspect.signature(getattr(cls, name)).parameters
        if not name.startswith("_") and "args" not in ours:
            assert list(ours) == list(inspect.signature(method).parameters), name
            checked += 1
    assert checked > 10


def test_positional_arguments() -> None:
    model = AveragingPPO("MlpPolicy", "CartPole-v1", 1e-3, 64, 32, 3, 0.95, 0.9, correction="power")
    assert (model.n_steps, model.batch_size, model.n_epochs, model.gamma, model.gae_lambda) == (64, 32, 3, 0.95, 0.9)


# Quick start and examples


@BOTH
def test_getting_started(cls: Any) -> None:
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    model = make(cls, env, verbose=1)
    assert model.learn(total_timesteps=200) is model
    vec_env = model.get_env()
    obs = vec_env.reset()
    for _ in range(3):
        action, _states = model.predict(obs, deterministic=True)
        obs, _reward, _done, _info = vec_env.step(action)
    assert obs.shape == (1, 4)


@BOTH
def test_evaluate_policy_and_multiprocessing(cls: Any) -> None:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=SubprocVecEnv)
    try:
        model = make(cls, env).learn(200)
        assert model.correction_weights.shape == (model.n_steps, 2)
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


@pytest.mark.parametrize("action_space", [spaces.Box(-2.0, 2.0, (3,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)])
@BOTH
def test_action_spaces(cls: Any, action_space: spaces.Space) -> None:
    model = make(cls, make_vec_env(lambda: space_env("dict", action_space), n_envs=2), policy_for("dict")).learn(128)
    assert action_space.contains(model.predict(space_env("dict").observation_space.sample())[0])


def test_gsde_without_fixed_frequency() -> None:
    make(AveragingPPO, "Pendulum-v1", use_sde=True, sde_sample_freq=-1, policy_kwargs={"squash_output": True}).learn(64)


# Callbacks


@BOTH
def test_eval_callback(cls: Any, tmp_path: Path) -> None:
    callback = EvalCallback(
        Monitor(gym.make("CartPole-v1")),
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        eval_freq=50,
        n_eval_episodes=1,
        verbose=0,
    )
    model = make(cls).learn(200, callback)
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == list(range(50, model.num_timesteps + 1, 50))
    best = cls.load(tmp_path / "best_model")
    assert best.predict_correction(np.zeros((1, 4), dtype=np.float32)).shape == (1,)


@BOTH
def test_checkpoint_callback(cls: Any, tmp_path: Path) -> None:
    make(cls).learn(128, CheckpointCallback(save_freq=50, save_path=str(tmp_path), name_prefix="m"))
    assert {path.name for path in tmp_path.iterdir()} == {"m_50_steps.zip", "m_100_steps.zip"}
    model = cls.load(tmp_path / "m_50_steps.zip", env=gym.make("CartPole-v1"))
    model.learn(32, reset_num_timesteps=False)
    assert model.num_timesteps == 82 or cls is AveragingA2C


def test_stopping_callbacks() -> None:
    model = make(AveragingPPO, ClockEnv(10)).learn(10_000, StopTrainingOnMaxEpisodes(max_episodes=5))
    assert model.num_timesteps == 50

    stop = StopTrainingOnRewardThreshold(reward_threshold=1.0)
    evaluation = EvalCallback(Monitor(ClockEnv(10)), callback_on_new_best=stop, eval_freq=40, n_eval_episodes=1, verbose=0)
    assert make(AveragingPPO, ClockEnv(10)).learn(10_000, evaluation).num_timesteps == 40

    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1, min_evals=1)
    evaluation = EvalCallback(Monitor(ClockEnv(10)), callback_after_eval=stop, eval_freq=20, n_eval_episodes=1, verbose=0)
    assert make(AveragingPPO, ClockEnv(10)).learn(10_000, evaluation).num_timesteps < 200


@BOTH
def test_callbacks_see_what_sb3_shows_them(cls: Any) -> None:
    seen: dict[str, Any] = {}

    class Custom(BaseCallback):
        def _on_training_start(self) -> None:
            seen["start"] = self.model.num_timesteps

        def _on_rollout_start(self) -> None:
            seen["rollouts"] = seen.get("rollouts", 0) + 1

        def _on_step(self) -> bool:
            for name in ("new_obs", "rewards", "dones", "infos", "actions", "clipped_actions", "obs_tensor", "env"):
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


def test_callback_as_a_function_or_a_list() -> None:
    calls = []

    def function(local: dict[str, Any], _: dict[str, Any]) -> bool:
        calls.append(local["self"].num_timesteps)
        return len(calls) < 10

    assert make(AveragingPPO).learn(100, function).num_timesteps == 10
    make(AveragingPPO).learn(64, [EveryNTimesteps(10, CheckpointNothing()), CheckpointNothing()])


class CheckpointNothing(BaseCallback):
    def _on_step(self) -> bool:
        return True


@BOTH
def test_progress_bar(cls: Any) -> None:
    assert make(cls).learn(100, progress_bar=True).num_timesteps >= 100


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


@pytest.mark.parametrize("network", ["shared", "separate"])
@BOTH
def test_custom_policy(cls: Any, network: str, tmp_path: Path) -> None:
    model = make(cls, policy=CustomPolicy, correction_network=network, critic_epochs=1).learn(128)
    model.save(tmp_path / "model")
    loaded = cls.load(tmp_path / "model")
    observations = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict_correction(observations), model.predict_correction(observations))


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
def test_continued_training(cls: Any, tmp_path: Path) -> None:
    model = make(cls, tensorboard_log=str(tmp_path))
    steps = 4 * model.n_steps
    model.learn(steps, tb_log_name="first")
    model.learn(steps, tb_log_name="second", reset_num_timesteps=False)
    assert model.num_timesteps == 2 * steps
    model.learn(steps)
    assert model.num_timesteps == steps


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


def test_model_without_an_environment_predicts(tmp_path: Path) -> None:
    model = make(AveragingPPO).learn(64)
    model.save(tmp_path / "model")
    loaded = AveragingPPO.load(tmp_path / "model")
    observation = np.zeros(4, dtype=np.float32)
    assert loaded.predict(observation, deterministic=True)[0] == model.predict(observation, deterministic=True)[0]
    assert model.predict(np.zeros((5, 4), dtype=np.float32))[0].shape == (5,)


# Export


class OnnxableSB3Policy(nn.Module):
    """The documentation's wrapper for export."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        return self.policy(observation, deterministic=True)


def test_policy_is_saved_traced_and_taken_by_sb3(tmp_path: Path) -> None:
    model = make(AveragingPPO, "Pendulum-v1").learn(64)
    observation = np.ones((1, 3), dtype=np.float32)
    expected = model.predict(observation, deterministic=True)[0]
    model.policy.save(str(tmp_path / "policy"))
    policy = ActorCriticPolicy.load(str(tmp_path / "policy"))
    np.testing.assert_array_equal(policy.predict(observation, deterministic=True)[0], expected)

    traced = th.jit.trace(OnnxableSB3Policy(model.policy).eval(), th.as_tensor(observation), check_trace=False)
    np.testing.assert_allclose(traced(th.as_tensor(observation))[0].detach().numpy().clip(-2, 2), expected, rtol=1e-5)

    theirs = PPO("MlpPolicy", "Pendulum-v1", device="cpu")
    theirs.set_parameters({"policy": model.get_parameters()["policy"]}, exact_match=False)
    np.testing.assert_array_equal(theirs.predict(observation, deterministic=True)[0], expected)


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
def test_csv_and_stdout_logs(cls: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(cls)
    model.set_logger(configure(str(tmp_path), ["stdout", "csv"]))
    model.learn(4 * model.n_steps, log_interval=1)
    with open(tmp_path / "progress.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1].keys() >= KEYS
    assert all(np.isfinite(float(rows[-1][key])) for key in KEYS)
    assert 0.0 < float(rows[-1]["correction/effective_sample_size"]) <= 1.0
    printed = capsys.readouterr().out
    assert "correction/" in printed
    assert "effective_sample_size" in printed


@BOTH
def test_tensorboard_logs(cls: Any, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = make(cls, tensorboard_log=str(tmp_path))
    model.learn(4 * model.n_steps, log_interval=1)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"{cls.__name__}_1"
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= KEYS


# A user's own subclass


def test_a_users_subclass() -> None:
    class Mine(AveragingPPO):
        """My own."""

        def __init__(self, *args: Any, correction_lambda: float = 0.3, mine: int = 1, **kwargs: Any) -> None:
            self.mine = mine
            super().__init__(*args, correction_lambda=correction_lambda, **kwargs)

        def train(self) -> None:
            self.mine += 1
            super().train()

    model = make(Mine, mine=5).learn(64)
    assert model.correction_lambda == 0.3
    assert model.mine == 5 + 4  # updates of 16 steps
    assert inspect.signature(Mine).parameters["mine"].default == 1
    assert Mine.__doc__ is not None
    assert Mine.__doc__.startswith("My own.")
