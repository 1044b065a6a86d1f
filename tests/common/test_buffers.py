"""The episode clock: t is 0 at an episode's first step and counts on over rollout borders, per environment (invariant 4)."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import SPACES, ClockEnv, FaultyEnv, policy_for, space_env
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import BaseBuffer, DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_avgcorr import AveragingA2C, AveragingPPO
from sb3_avgcorr.common.buffers import EpisodeClock, clocked, episode_steps, with_episode_clock

PPO_SETTINGS: dict[str, Any] = {
    "n_steps": 8,
    "batch_size": 8,
    "n_epochs": 1,
    "seed": 0,
    "device": "cpu",
    "correction_epochs": 1,
}


# The pure function


def test_steps_worked_out_by_hand() -> None:
    starts = np.array([[1, 0], [0, 0], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(
        episode_steps(starts, np.array([50, 7])),
        #  environment 0 begins with an episode, so that 50 does not count; environment 1 is at its 8th step
        [[0, 7], [1, 8], [2, 0], [0, 0], [1, 1]],
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_steps_equal_counting(n_steps: int, n_envs: int, data: st.DataObject) -> None:
    rows = st.lists(st.lists(st.booleans(), min_size=n_envs, max_size=n_envs), min_size=n_steps, max_size=n_steps)
    starts = np.array(data.draw(rows))
    first = np.array(data.draw(st.lists(st.integers(0, 1000), min_size=n_envs, max_size=n_envs)))
    counted = np.zeros_like(starts, dtype=int)
    t = first - 1
    for row, start in enumerate(starts):
        t = np.where(start, 0, t + 1)
        counted[row] = t
    np.testing.assert_array_equal(episode_steps(starts, first), counted)


# A buffer by itself


def fill(buffer: RolloutBuffer, starts: list[list[int]], dones: list[int], extra: tuple[Any, ...] = (), **more: Any) -> None:
    """Fill a buffer with rows that begin (or do not begin) an episode, and close it."""
    buffer.reset()
    n_envs = buffer.n_envs
    observation: Any = np.zeros((n_envs, 3), dtype=np.float32)
    if isinstance(buffer, DictRolloutBuffer):
        observation = {"vector": observation, "kind": np.zeros((n_envs,), dtype=np.int64)}
    for start in starts:
        zeros = np.zeros(n_envs)
        action = np.zeros((n_envs, 1))
        buffer.add(observation, action, zeros, np.array(start), th.zeros(n_envs), th.zeros(n_envs), *extra, **more)
    buffer.compute_returns_and_advantage(th.zeros(n_envs), np.array(dones, dtype=bool))


def check_two_rollouts(buffer: RolloutBuffer, *extra: Any, **more: Any) -> EpisodeClock:
    clock = with_episode_clock(buffer)
    assert clock is buffer
    fill(clock, [[1, 1], [0, 1], [0, 0]], [0, 1], extra, **more)
    np.testing.assert_array_equal(clock.episode_steps, [[0, 0], [1, 0], [2, 1]])
    # episode 0 goes on at t = 3; episode 1 has ended
    fill(clock, [[0, 1], [0, 0], [1, 0]], [0, 0], extra, **more)
    np.testing.assert_array_equal(clock.episode_steps, [[3, 0], [4, 1], [0, 2]])
    np.testing.assert_allclose(clock.discount_powers, 0.5 ** np.array([[3, 0], [4, 1], [0, 2]]))
    np.testing.assert_array_equal(clock.next_episode_steps, [1, 3])
    # training rearranges the buffer, the clock does not care
    list(clock.get(2))
    fill(clock, [[0, 0], [0, 0], [0, 0]], [0, 0], extra, **more)
    np.testing.assert_array_equal(clock.episode_steps, [[1, 3], [2, 4], [3, 5]])
    return clock


class OwnBuffer(RolloutBuffer):
    """A user's buffer, with an argument and an array of its own."""

    def __init__(self, *args: Any, bonus: float = 0.0, **kwargs: Any) -> None:
        self.bonus = bonus
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        self.mine = np.zeros((self.buffer_size, self.n_envs))
        super().reset()

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        self.rewards += self.bonus
        super().compute_returns_and_advantage(last_values, dones)


@pytest.mark.parametrize("buffer_class", [RolloutBuffer, OwnBuffer, clocked(RolloutBuffer)])
def test_clock_of_plain_buffers(buffer_class: type[RolloutBuffer]) -> None:
    clock = check_two_rollouts(buffer_class(3, SPACES["box"], spaces.Discrete(2), gamma=0.5, n_envs=2))
    assert isinstance(clock, buffer_class)


def test_clock_of_dict_buffer() -> None:
    check_two_rollouts(DictRolloutBuffer(3, SPACES["dict"], spaces.Discrete(2), gamma=0.5, n_envs=2))


def test_clock_of_maskable_buffers() -> None:
    buffers = pytest.importorskip("sb3_contrib.common.maskable.buffers")
    masks = np.ones((2, 2))
    check_two_rollouts(
        buffers.MaskableRolloutBuffer(3, SPACES["box"], spaces.Discrete(2), gamma=0.5, n_envs=2), action_masks=masks
    )
    check_two_rollouts(
        buffers.MaskableDictRolloutBuffer(3, SPACES["dict"], spaces.Discrete(2), gamma=0.5, n_envs=2), action_masks=masks
    )


def test_clock_of_recurrent_buffers() -> None:
    buffers = pytest.importorskip("sb3_contrib.common.recurrent.buffers")
    types = pytest.importorskip("sb3_contrib.common.recurrent.type_aliases")
    pair = (th.zeros(1, 2, 4), th.zeros(1, 2, 4))
    for cls, space in ((buffers.RecurrentRolloutBuffer, "box"), (buffers.RecurrentDictRolloutBuffer, "dict")):
        buffer = cls(3, SPACES[space], spaces.Discrete(2), hidden_state_shape=(3, 1, 2, 4), gamma=0.5, n_envs=2)
        check_two_rollouts(buffer, lstm_states=types.RNNStates(pair, pair))


def test_returns_computed_again_do_not_move_the_clock() -> None:
    # a callback that adds an intrinsic reward computes the returns of a finished rollout once more
    buffer = with_episode_clock(RolloutBuffer(2, SPACES["box"], spaces.Discrete(2), gamma=0.5, n_envs=1))
    fill(buffer, [[1], [0]], [0])
    fill(buffer, [[0], [0]], [0])
    buffer.compute_returns_and_advantage(th.zeros(1), np.array([False]))
    np.testing.assert_array_equal(buffer.episode_steps, [[2], [3]])
    np.testing.assert_array_equal(buffer.next_episode_steps, [4])


def test_clocked_is_one_class_for_each_buffer_class() -> None:
    assert clocked(RolloutBuffer) is clocked(RolloutBuffer)
    assert clocked(clocked(RolloutBuffer)) is clocked(RolloutBuffer)
    with pytest.raises(TypeError, match="RolloutBuffer"):
        clocked(BaseBuffer)  # type: ignore[arg-type]


def test_model_pickles_as_sb3s_does() -> None:
    model = AveragingPPO("MlpPolicy", "CartPole-v1", **PPO_SETTINGS)
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again.rollout_buffer, EpisodeClock)
    again.learn(16)


# Inside learn()


class Watch(BaseCallback):
    """
    Compares the clock of every rollout with the time that the observations tell.

    :param stop_at: number of the step at which to end training, as a user's callback may
    :param stale_rows: rows of the first rollout whose observation SB3 itself has wrong
    """

    def __init__(self, stop_at: int | None = None, stale_rows: int = 0) -> None:
        super().__init__()
        self.stop_at, self.stale_rows = stop_at, stale_rows
        self.rollouts: list[np.ndarray] = []

    def _on_step(self) -> bool:
        return self.n_calls != self.stop_at

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        lengths = np.array(self.training_env.get_attr("length"))
        told = np.rint(buffer.observations[..., 0] * lengths).astype(int)
        skip = self.stale_rows if not self.rollouts else 0
        np.testing.assert_array_equal(buffer.episode_steps[skip:], told[skip:])
        self.rollouts.append(buffer.episode_steps)


def clocks(*lengths: int, **kwargs: Any) -> VecEnv:
    return DummyVecEnv([lambda length=length: ClockEnv(length, **kwargs) for length in lengths])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("truncates", [True, False])
def test_clock_is_the_environments_over_rollout_borders(truncates: bool, fast: bool) -> None:
    # episodes shorter than, as long as, longer than and much longer than a rollout of 8 steps
    watch = Watch()
    AveragingPPO("MlpPolicy", clocks(3, 8, 11, 500, truncates=truncates), fast=fast, **PPO_SETTINGS).learn(8 * 4 * 6, watch)
    assert len(watch.rollouts) == 6
    np.testing.assert_array_equal(np.concatenate(watch.rollouts)[:, 3], np.arange(48))


def test_clock_of_a2c() -> None:
    watch = Watch()
    AveragingA2C("MlpPolicy", clocks(3, 50), n_steps=5, seed=0, device="cpu").learn(200, watch)
    np.testing.assert_array_equal(np.concatenate(watch.rollouts)[:50, 1], np.arange(50))


@pytest.mark.parametrize("correction", ["power", None])
def test_clock_runs_without_a_head_too(correction: Any) -> None:
    watch = Watch()
    AveragingPPO("MlpPolicy", clocks(3, 11), correction=correction, **PPO_SETTINGS).learn(48, watch)
    assert len(watch.rollouts) == 3


def test_clock_goes_on_in_continued_training_and_restarts_with_a_reset() -> None:
    model = AveragingPPO("MlpPolicy", clocks(100), **PPO_SETTINGS)
    first, continued, restarted = Watch(), Watch(), Watch()
    model.learn(16, first)
    model.learn(16, continued, reset_num_timesteps=False)
    model.learn(8, restarted)
    np.testing.assert_array_equal(np.concatenate(continued.rollouts)[:, 0], np.arange(16, 32))
    np.testing.assert_array_equal(restarted.rollouts[0][:, 0], np.arange(8))


def test_clock_restarts_with_a_new_environment() -> None:
    model = AveragingPPO("MlpPolicy", clocks(100), **PPO_SETTINGS).learn(16)
    model.set_env(clocks(100))
    model.learn(16, Watch(), reset_num_timesteps=False)
    np.testing.assert_array_equal(model.rollout_buffer.episode_steps[:, 0], np.arange(8, 16))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("stop_at", [2, 3, 4, 5, 7, 8, 9, 10, 12])
def test_clock_after_a_callback_ended_training(stop_at: int, fast: bool) -> None:
    # SB3 forgets the transition during which the callback stopped it, so its next row holds an observation that is one
    # step old; from the row after that the clock must agree with the environment again. (Left out are the first steps of an
    # episode: SB3 reports that start twice, and the clock follows SB3.)
    model = AveragingPPO("MlpPolicy", clocks(5, 30), fast=fast, **PPO_SETTINGS)
    model.learn(1000, Watch(stop_at))
    model.learn(32, Watch(stale_rows=1), reset_num_timesteps=False)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("at", [1, 5, 6, 8, 9, 12])
def test_clock_after_an_exception_in_the_environment(at: int, fast: bool) -> None:
    env = DummyVecEnv([lambda: FaultyEnv(at, KeyboardInterrupt(), length=30)])
    model = AveragingPPO("MlpPolicy", env, fast=fast, **PPO_SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000, Watch())
    # the environment moved when it was interrupted, SB3 does not know: the clock continues from what SB3 knows
    model.learn(8, reset_num_timesteps=False)
    np.testing.assert_array_equal(model.rollout_buffer.episode_steps[:, 0], at - 1 + np.arange(8))


@pytest.mark.parametrize("fast", [True, False])
def test_clock_after_an_interruption_at_the_end_of_a_rollout(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AveragingPPO("MlpPolicy", clocks(100), fast=fast, **PPO_SETTINGS).learn(8)

    def interrupted(*_: Any) -> th.Tensor:
        raise KeyboardInterrupt

    # all steps are made, the value after the last one is not known yet
    monkeypatch.setattr(model.policy, "predict_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(8, reset_num_timesteps=False)
    monkeypatch.undo()
    model.learn(8, Watch(), reset_num_timesteps=False)
    np.testing.assert_array_equal(model.rollout_buffer.episode_steps[:, 0], np.arange(16, 24))


class IntrinsicReward(BaseCallback):
    """Adds to the rewards of a finished rollout and computes its returns again."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        buffer.rewards += 0.1
        buffer.compute_returns_and_advantage(th.zeros(buffer.n_envs), np.asarray(self.locals["dones"]))


def test_clock_with_intrinsic_rewards() -> None:
    AveragingPPO("MlpPolicy", clocks(5, 30), **PPO_SETTINGS).learn(64, [IntrinsicReward(), Watch()])


def test_a_users_own_buffer_class() -> None:
    watch = Watch()
    model = AveragingPPO(
        "MlpPolicy",
        clocks(3, 11),
        rollout_buffer_class=OwnBuffer,
        rollout_buffer_kwargs={"bonus": 2.0},
        **PPO_SETTINGS,
    )
    assert isinstance(model.rollout_buffer, OwnBuffer)
    assert isinstance(model.rollout_buffer, EpisodeClock)
    assert model.rollout_buffer_class is OwnBuffer
    model.learn(48, watch)
    assert len(watch.rollouts) == 3
    assert (model.rollout_buffer.rewards >= 2.0).all()


@pytest.mark.parametrize("kind", ["dict", "dict_image", "image", "discrete"])
def test_clock_with_other_observations(kind: str) -> None:
    model = AveragingPPO(policy_for(kind), DummyVecEnv([lambda: space_env(kind, length=5)] * 2), **PPO_SETTINGS).learn(32)
    np.testing.assert_array_equal(model.rollout_buffer.episode_steps, np.tile((np.arange(8, 16) % 5)[:, None], 2))


def test_a_buffer_that_is_not_sb3s_is_refused() -> None:
    class Strange:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

    with pytest.raises(TypeError, match="Strange"):
        AveragingPPO("MlpPolicy", clocks(3), rollout_buffer_class=Strange, **PPO_SETTINGS)  # type: ignore[arg-type]
