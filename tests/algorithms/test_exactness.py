"""With nothing to correct, AveragingPPO and AveragingA2C are SB3's PPO and A2C, to the bit (invariants 1 and 2)."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, policy_for, space_env
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_avgcorr import AveragingA2C, AveragingPPO

ALGORITHMS: dict[str, tuple[type[OnPolicyAlgorithm], type[OnPolicyAlgorithm], dict[str, Any]]] = {
    "ppo": (PPO, AveragingPPO, {"n_steps": 24, "batch_size": 20, "n_epochs": 2}),
    "a2c": (A2C, AveragingA2C, {"n_steps": 8}),
}

TASKS: dict[str, tuple[str, Callable[[], VecEnv], dict[str, Any]]] = {
    "cartpole": ("MlpPolicy", lambda: make_vec_env("CartPole-v1", n_envs=3), {}),
    "one_env": ("MlpPolicy", lambda: make_vec_env("CartPole-v1", n_envs=1), {}),
    "pendulum": ("MlpPolicy", lambda: make_vec_env("Pendulum-v1", n_envs=2), {}),
    "gsde": ("MlpPolicy", lambda: make_vec_env("Pendulum-v1", n_envs=2), {"use_sde": True, "sde_sample_freq": 4}),
    "vec_normalize": ("MlpPolicy", lambda: VecNormalize(make_vec_env("Pendulum-v1", n_envs=2)), {}),
    "dict": (policy_for("dict"), lambda: make_vec_env(lambda: space_env("dict"), n_envs=2), {}),
    "image": (policy_for("image"), lambda: make_vec_env(lambda: space_env("image"), n_envs=2), {"n_steps": 10}),
    "multi_discrete_actions": (
        "MlpPolicy",
        lambda: make_vec_env(lambda: space_env("multi_binary", spaces.MultiDiscrete([2, 3])), n_envs=2),
        {},
    ),
}

#: options under which there is nothing to correct
NOTHING_TO_CORRECT: dict[str, dict[str, Any]] = {
    "none": {"correction": None},
    "none, not fast": {"correction": None, "fast": False},
    "averaging, gamma 1": {"gamma": 1.0},
    "power, gamma 1, not fast": {"gamma": 1.0, "correction": "power", "fast": False},
}


def make(algorithm: str, ours: bool, task: str, **options: Any) -> OnPolicyAlgorithm:
    theirs_class, our_class, settings = ALGORITHMS[algorithm]
    policy, make_env, task_settings = TASKS[task]
    cls = our_class if ours else theirs_class
    return cls(policy, make_env(), **{"seed": 3, "device": "cpu", **settings, **task_settings, **options})  # type: ignore[arg-type]


def random_state() -> list[np.ndarray]:
    """Where the global streams are that SB3 draws from."""
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    return [th.get_rng_state().numpy(), np.asarray(keys), np.asarray(position)]


def learned(model: OnPolicyAlgorithm, updates: int) -> dict[str, Any]:
    """What a model knows after some updates, and where it leaves the random streams."""
    model.learn(updates * model.n_steps * model.n_envs)
    return {
        "policy": model.policy.state_dict(),
        "optimizer": model.policy.optimizer.state_dict(),
        "last_obs": model._last_obs,
        "random": random_state(),
        "n_updates": model._n_updates,
    }


@cache
def reference(algorithm: str, task: str, gamma: float | None) -> dict[str, Any]:
    """SB3's own result; several tests compare with the same one."""
    return learned(make(algorithm, False, task, **({} if gamma is None else {"gamma": gamma})), 3)


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal to the bit, through nested containers."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(theirs, th.Tensor):
        assert th.equal(ours, theirs), where
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, err_msg=where)
    else:
        assert ours == theirs, where


def differs(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return any(not th.equal(a, b) for a, b in zip(ours["policy"].values(), theirs["policy"].values(), strict=True))


@pytest.mark.parametrize("options", NOTHING_TO_CORRECT.values(), ids=NOTHING_TO_CORRECT)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_as_sb3(algorithm: str, task: str, options: dict[str, Any]) -> None:
    ours = learned(make(algorithm, True, task, **options), 3)
    assert_same(ours, reference(algorithm, task, options.get("gamma")))
    assert ours["optimizer"]["state"], "an optimiser that has not stepped would prove nothing"


@pytest.mark.parametrize("task", ["cartpole", "pendulum", "dict", "image", "gsde"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("options", [{}, {"correction": "power"}])
def test_the_correction_does_change_the_update(algorithm: str, task: str, options: dict[str, Any]) -> None:
    # else the tests above could not fail
    assert differs(learned(make(algorithm, True, task, **options), 3), reference(algorithm, task, None))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "settings", [{"target_kl": 1e-4}, {"clip_range_vf": 0.1}, {"normalize_advantage": False}, {"ent_coef": 0.1}]
)
def test_same_with_other_settings(algorithm: str, settings: dict[str, Any]) -> None:
    if algorithm == "a2c" and not settings.keys() <= {"normalize_advantage", "ent_coef"}:
        settings = {"use_rms_prop": False, "normalize_advantage": True}
    ours = learned(make(algorithm, True, "cartpole", correction=None, **settings), 4)
    assert_same(ours, learned(make(algorithm, False, "cartpole", **settings), 4))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_when_continued(algorithm: str) -> None:
    results = []
    for ours in (True, False):
        model = make(algorithm, ours, "cartpole", **({"correction": None} if ours else {}))
        model.learn(100).learn(100, reset_num_timesteps=False)
        results.append(learned(model, 2))
    assert_same(*results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_after_loading(algorithm: str, tmp_path: Any) -> None:
    results = []
    for ours in (True, False):
        model = make(algorithm, ours, "cartpole", **({"correction": None} if ours else {}))
        model.learn(200).save(tmp_path / "model")
        results.append(learned(type(model).load(tmp_path / "model", env=TASKS["cartpole"][1](), device="cpu"), 3))
    assert_same(*results)


def test_same_critic_learning_rate_is_no_change() -> None:
    # Adam works element by element: parameter groups with the same learning rate must not matter
    ours = learned(make("ppo", True, "cartpole", correction=None, critic_learning_rate=3e-4), 3)
    assert_same(ours["policy"], reference("ppo", "cartpole", None)["policy"])


# Random streams with the correction on


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_construction_draws_nothing(algorithm: str, task: str, network: str) -> None:
    results = []
    for ours in (True, False):
        model = make(algorithm, ours, task, **({"correction_network": network, "critic_epochs": 1} if ours else {}))
        results.append({"policy": model.policy.state_dict(), "random": random_state()})
        model.action_space.sample()
    assert_same(*results)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction": "power", "normalize_before_weighting": True, "normalize_correction": "running"},
        {"correction_network": "separate", "correction_loss": "mse", "correction_order": "after", "critic_epochs": 2},
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("continuous", [False, True])
def test_correction_draws_nothing(algorithm: str, options: dict[str, Any], fast: bool, continuous: bool) -> None:
    # Parameters differ, but episodes have a fixed length, so that SB3's own draws are the same in number.
    def env() -> VecEnv:
        return make_vec_env(lambda: ClockEnv(length=13, continuous=continuous), n_envs=2)

    _, our_class, settings = ALGORITHMS[algorithm]
    theirs = learned(ALGORITHMS[algorithm][0]("MlpPolicy", env(), seed=3, device="cpu", **settings), 3)  # type: ignore[arg-type]
    ours = learned(our_class("MlpPolicy", env(), seed=3, device="cpu", fast=fast, **settings, **options), 3)  # type: ignore[arg-type]
    assert_same(ours["random"], theirs["random"])
    assert differs(ours, theirs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_first_rollout_is_sb3s(algorithm: str) -> None:
    # the first rollout is collected by equal policies: actions, rewards, values and then the streams after train()
    models = [make(algorithm, ours, "cartpole") for ours in (True, False)]
    states, rewards = [], []
    for model in models:
        model.set_random_seed(5)
        model.learn(model.n_steps * model.n_envs)
        states.append(random_state())
        rewards.append([model.rollout_buffer.rewards, model.rollout_buffer.episode_starts])
    assert_same(rewards[0], rewards[1])
    assert_same(states[0], states[1])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("options", [{}, {"correction_order": "after", "correction_network": "separate"}])
def test_same_seed_same_result(algorithm: str, options: dict[str, Any]) -> None:
    assert_same(*(learned(make(algorithm, True, "cartpole", **options), 4) for _ in range(2)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reproducible_when_seeded_from_outside(algorithm: str) -> None:
    # as SB3: who seeds numpy, torch and the environments, and gives the model no seed, gets the same result again
    def run() -> dict[str, Any]:
        np.random.seed(0)  # noqa: NPY002
        th.manual_seed(0)
        settings = ALGORITHMS[algorithm][2]
        env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
        return learned(ALGORITHMS[algorithm][1]("MlpPolicy", env, device="cpu", **settings), 3)  # type: ignore[arg-type]

    assert_same(run()["policy"], run()["policy"])
