"""The step t inside the episode, which the correction discounts by."""

import numpy as np


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


class EpisodeClock:
    """
    Reads the step inside the episode from the episode starts of rollouts.

    The clock runs on over the borders of rollouts, because an episode does, and restarts at every episode start that SB3
    reports (so also when SB3 resets the environment).

    :param n_envs: number of environments
    """

    def __init__(self, n_envs: int) -> None:
        #: t of the observation that the next rollout begins with, unless an episode starts there; shape (n_envs,)
        self.next_steps = np.zeros(n_envs, dtype=np.int64)
        #: t of each row of the last rollout, shape (n_steps, n_envs)
        self.steps = np.zeros((0, n_envs), dtype=np.int64)

    def read(self, episode_starts: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """
        Read the rows that were collected since the last call.

        :param episode_starts: true where an episode begins, shape (n_steps, n_envs); also of a rollout that broke off
        :param ended: whether the episode of the last row ended with it, shape (n_envs,)
        :return: t of each row
        """
        self.steps = episode_steps(episode_starts, self.next_steps)
        following = self.steps[-1] + 1 if len(self.steps) else self.next_steps
        self.next_steps = np.where(ended, 0, following)
        return self.steps

    def skip(self, ended: np.ndarray) -> None:
        """
        Count a step that was made but not stored: SB3 leaves a rollout that a callback stops before it stores the last one.

        :param ended: which episodes ended with it, shape (n_envs,)
        """
        self.next_steps = np.where(ended, 0, self.next_steps + 1)
