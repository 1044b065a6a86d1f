"""Rollout buffers that know the step inside the episode."""

from functools import cache
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_avgcorr.common.fast import LeanRolloutBuffer


def episode_steps(episode_starts: np.ndarray, first_steps: np.ndarray) -> np.ndarray:
    """
    Count the step t inside the episode: 0 where an episode starts, one more at each row after it.

    :param episode_starts: true where an episode begins, shape (n_steps, n_envs)
    :param first_steps: t of the first row of each environment if no episode starts there, shape (n_envs,)
    :return: t, integers of shape (n_steps, n_envs)
    """
    row = np.arange(len(episode_starts))[:, None]
    last_start = np.maximum.accumulate(np.where(episode_starts.astype(bool), row, -1), axis=0)
    return np.where(last_start >= 0, row - last_start, first_steps + row)


class EpisodeClock(LeanRolloutBuffer):
    """
    Adds the episode step to a rollout buffer class; see :func:`with_episode_clock`.

    The clock runs on over the borders of rollouts, because an episode does, and restarts at every episode start that
    SB3 reports (so also when SB3 resets the environment).
    """

    #: t of each row, shape (n_steps, n_envs); there once the rollout is complete
    episode_steps: np.ndarray
    #: t of the first row of this rollout and of the next (if no episode starts there), shape (n_envs,)
    first_episode_steps: np.ndarray
    next_episode_steps: np.ndarray
    #: value of the state after the last row and whether its episode ended there, shape (n_envs,)
    last_values: np.ndarray
    last_dones: np.ndarray

    @property
    def discount_powers(self) -> np.ndarray:
        """γ^t of each row, shape (n_steps, n_envs)."""
        return np.power(self.gamma, self.episode_steps)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        super().compute_returns_and_advantage(last_values, dones)
        # counted from the rollout's first row, because a callback may change rewards and compute the returns again
        self.episode_steps = episode_steps(self.episode_starts, self.first_episode_steps)
        self.next_episode_steps = np.where(dones, 0, self.episode_steps[-1] + 1)
        self.last_values = last_values.detach().cpu().numpy().flatten()
        self.last_dones = np.asarray(dones, dtype=bool)

    @property
    def current_episode_steps(self) -> np.ndarray:
        """t of the row that comes next, shape (n_envs,): also in the middle of a rollout."""
        # compute_returns_and_advantage() makes a new array; until then the rows so far are not counted in it
        if self.next_episode_steps is self.first_episode_steps and self.pos > 0:
            return episode_steps(self.episode_starts[: self.pos], self.first_episode_steps)[-1] + 1
        return self.next_episode_steps

    def reset(self) -> None:
        # A rollout that was broken off (an exception, a callback) has moved the environments all the same.
        known = hasattr(self, "next_episode_steps")
        self.next_episode_steps = self.current_episode_steps if known else np.zeros(self.n_envs, dtype=np.int64)
        self.first_episode_steps = self.next_episode_steps
        super().reset()

    def break_off(self, dones: np.ndarray) -> None:
        """
        Close a rollout that a callback stopped. SB3 leaves before it stores the last transition, but the
        environments have made it, and where it ended an episode they stand at the start of another.

        :param dones: which episodes ended in that transition
        """
        self.reset()
        self.next_episode_steps = self.first_episode_steps = np.where(dones, 0, self.next_episode_steps + 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self).__bases__[-1], self.__dict__)


def _restore(buffer_class: type[RolloutBuffer], state: dict[str, Any]) -> EpisodeClock:
    """Unpickle a clocked buffer: its class is made at run time, so pickle cannot find it by name."""
    buffer = object.__new__(clocked(buffer_class))
    buffer.__dict__.update(state)
    return buffer


@cache
def clocked(buffer_class: type[RolloutBuffer]) -> type[EpisodeClock]:
    """
    The same buffer class with an episode clock.

    :param buffer_class: any rollout buffer class: SB3's, sb3-contrib's or a user's own
    :return: a subclass of it and of :class:`EpisodeClock`
    """
    if not issubclass(buffer_class, RolloutBuffer):
        raise TypeError(f"The rollout buffer class must be a subclass of SB3's RolloutBuffer, not {buffer_class!r}.")
    if issubclass(buffer_class, EpisodeClock):
        return buffer_class
    bases = (EpisodeClock, LeanRolloutBuffer, buffer_class)
    return type(f"Clocked{buffer_class.__name__}", bases, {"__doc__": EpisodeClock.__doc__})


def with_episode_clock(buffer: RolloutBuffer) -> EpisodeClock:
    """
    Give an existing buffer an episode clock, in place.

    The class of the object is changed instead of ``rollout_buffer_class``, because not every algorithm asks for one
    (RecurrentPPO chooses its buffer itself) and because that attribute is saved with the model.

    :param buffer: a rollout buffer
    :return: the same buffer
    """
    buffer.__class__ = clocked(type(buffer))
    assert isinstance(buffer, EpisodeClock)
    buffer.reset()
    return buffer
