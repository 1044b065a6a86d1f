"""The clock t: 0 at an episode's first step, on over rollout borders, per environment, whatever interrupts (invariant 4)."""

from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, FaultyEnv
from family import FAMILY, learned, make_with, on_update, vec_env
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

GAMMA = 0.99
#: under which the weights are γ^t itself
POWER: dict[str, Any] = {"correction": "power", "correction_strength": 1.0, "normalize_correction": False, "gamma": GAMMA}
FAST = pytest.mark.parametrize("fast", [True, False])


def steps_of(model: Any) -> np.ndarray:
    """t of the last rollout, as the weights tell it."""
    return np.rint(np.log(model.correction_weights.astype(np.float64)) / np.log(GAMMA)).astype(int)


def told_steps(model: Any) -> np.ndarray:
    """t of the rollout in the buffer, as the observations of :class:`ClockEnv` tell it."""
    return np.rint(model.rollout_buffer.observations[..., 0] * np.array(model.get_env().get_attr("length"))).astype(int)


def watched(name: str, env: VecEnv, seen: list[np.ndarray], *, n_steps: int = 8, stale: int = 0, **options: Any) -> Any:
    """
    A model that compares the clock of every rollout with the time that the observations tell.

    :param seen: gets t of each rollout
    :param stale: rows of the first rollout whose observation SB3 itself has wrong
    """

    def check(model: Any) -> None:
        skip = stale if not seen else 0
        np.testing.assert_array_equal(steps_of(model)[skip:], told_steps(model)[skip:])
        seen.append(steps_of(model))

    settings = {**POWER, "n_steps": n_steps, **options}
    if name not in ("a2c", "bac", "reinforce"):
        settings["batch_size"] = n_steps
    return make_with(on_update(name, check), name, env, **settings)


def clocks(name: str, *lengths: int, **kwargs: Any) -> VecEnv:
    """One environment for each length of an episode."""
    waiting = iter(lengths)
    return vec_env(name, lambda: ClockEnv(next(waiting), **kwargs), len(lengths))


@FAST
@pytest.mark.parametrize("name", FAMILY)
def test_over_rollout_borders(name: str, fast: bool) -> None:
    # episodes shorter than, as long as, longer than and much longer than a rollout of 8 steps
    seen: list[np.ndarray] = []
    learned(watched(name, clocks(name, 3, 8, 11, 500, truncates=fast), seen, fast=fast), 4)
    np.testing.assert_array_equal(np.concatenate(seen)[:, 3], np.arange(32))
    assert np.concatenate(seen)[:, 0].max() == 2


@pytest.mark.parametrize("options", [{"correction_order": "after"}, {}, {"correction": None}])
def test_runs_whatever_is_learned(options: dict[str, Any]) -> None:
    model = make_with(FAMILY["ppo"].ours, "ppo", clocks("ppo", 5, 100), n_steps=8, batch_size=8, **options)
    learned(model, 2)
    model.correction = "power"
    model.correction_strength, model.normalize_correction, model.gamma = 1.0, False, GAMMA
    learned(model, 1, reset_num_timesteps=False)
    np.testing.assert_array_equal(steps_of(model), np.stack([np.arange(16, 24) % 5, np.arange(16, 24)], axis=1))


@pytest.mark.parametrize("name", FAMILY)
def test_goes_on_in_continued_training_and_restarts_with_a_reset(name: str) -> None:
    seen: list[np.ndarray] = []
    model = watched(name, clocks(name, 100, 100), seen)
    learned(model, 2)
    learned(model, 2, reset_num_timesteps=False)
    learned(model, 1)
    assert [steps[0].tolist() for steps in seen] == [[0, 0], [8, 8], [16, 16], [24, 24], [0, 0]]


def test_restarts_with_a_new_environment() -> None:
    seen: list[np.ndarray] = []
    model = learned(watched("ppo", clocks("ppo", 100), seen), 1)
    model.set_env(clocks("ppo", 100))
    learned(model, 1, reset_num_timesteps=False)
    assert seen[-1][0, 0] == 0


class StopAt(BaseCallback):
    """Ends training at a step, as a user's callback may."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.n_calls != self.step


@FAST
@pytest.mark.parametrize("stop_at", [2, 4, 5, 7, 8, 9, 12])
def test_after_a_callback_ended_training(stop_at: int, fast: bool) -> None:
    # SB3 forgets the transition during which the callback stopped it, so its next row holds an observation that is one
    # step old; from the row after that the clock must agree with the environment again. (Left out are the first steps of an
    # episode: SB3 reports that start twice, and the clock follows SB3.)
    seen: list[np.ndarray] = []
    first = watched("ppo", clocks("ppo", 5, 30), seen, fast=fast)
    first.learn(1000, StopAt(stop_at))
    del seen[:]
    model = watched("ppo", first.get_env(), seen, fast=fast, stale=1)
    model._last_obs, model._last_episode_starts = first._last_obs, first._last_episode_starts
    model._clock = first._clock
    learned(model, 2, reset_num_timesteps=False)
    assert len(seen) == 2


@FAST
@pytest.mark.parametrize("at", [1, 5, 8, 9, 12])
@pytest.mark.parametrize("name", ["ppo", "ppo_recurrent"])
def test_after_an_exception_in_the_environment(name: str, at: int, fast: bool) -> None:
    # the environment moved when it was interrupted, SB3 does not know: the clock continues from what SB3 knows
    env = vec_env(name, lambda: FaultyEnv(at, KeyboardInterrupt(), length=30), 1)
    model = make_with(FAMILY[name].ours, name, env, **POWER, fast=fast, **{"n_steps": 8, "batch_size": 8})
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    learned(model, 1, reset_num_timesteps=False)
    np.testing.assert_array_equal(steps_of(model)[:, 0], at - 1 + np.arange(8))


class InterruptEnd(BaseCallback):
    """Interrupts once, when a rollout is complete."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        raise KeyboardInterrupt


@FAST
def test_after_an_interruption_at_the_end_of_a_rollout(fast: bool) -> None:
    seen: list[np.ndarray] = []
    model = learned(watched("ppo", clocks("ppo", 100), seen, fast=fast), 1)
    with pytest.raises(KeyboardInterrupt):
        learned(model, 1, reset_num_timesteps=False, callback=InterruptEnd())
    learned(model, 1, reset_num_timesteps=False)
    assert [steps[0, 0] for steps in seen] == [0, 16]


class IntrinsicReward(BaseCallback):
    """Adds to the rewards of a finished rollout and computes its returns again."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        buffer.rewards += 0.1
        buffer.compute_returns_and_advantage(th.zeros(buffer.n_envs), np.asarray(self.locals["dones"]))


def test_with_intrinsic_rewards() -> None:
    learned(watched("ppo", clocks("ppo", 5, 30), []), 4, callback=IntrinsicReward())


class OwnBuffer(RolloutBuffer):
    """A user's buffer, with an argument of its own."""

    def __init__(self, *args: Any, bonus: float = 0.0, **kwargs: Any) -> None:
        self.bonus = bonus
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        self.rewards += self.bonus
        super().compute_returns_and_advantage(last_values, dones)


def test_of_a_users_own_buffer() -> None:
    options = {"rollout_buffer_class": OwnBuffer, "rollout_buffer_kwargs": {"bonus": 2.0}}
    model = learned(watched("ppo", clocks("ppo", 3, 11), seen := [], **options), 3)
    assert len(seen) == 3
    assert type(model.rollout_buffer) is OwnBuffer
    assert (model.rollout_buffer.rewards >= 2.0).all()
