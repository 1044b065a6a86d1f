"""The episode clock by itself."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_avgcorr.common.clock import EpisodeClock, episode_steps


def test_steps_worked_out_by_hand() -> None:
    starts = np.array([[1, 0], [0, 0], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(
        episode_steps(starts, np.array([50, 7])),
        #  environment 0 begins with an episode, so that 50 does not count; environment 1 is at its 8th step
        [[0, 7], [1, 8], [2, 0], [0, 0], [1, 1]],
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 3), st.lists(st.integers(0, 9), max_size=4), st.randoms(use_true_random=False))
def test_a_rollout_in_pieces_is_the_whole(n_steps: int, n_envs: int, cuts: list[int], random: st.random_module) -> None:
    starts = np.array([[random.random() < 0.2 for _ in range(n_envs)] for _ in range(n_steps + 1)])
    starts[0] = True
    counted, t = np.zeros((n_steps, n_envs), dtype=int), np.zeros(n_envs, dtype=int)
    for row in range(n_steps):
        t = np.where(starts[row], 0, t)
        counted[row] = t
        t = t + 1
    clock, pieces = EpisodeClock(n_envs), []
    borders = [0, *sorted(min(cut, n_steps) for cut in cuts), n_steps]
    for begin, end in pairwise(borders):
        # what follows a piece is known only by whether the last episode ended, as SB3 has it
        pieces.append(clock.read(starts[begin:end], starts[end] if end > begin else np.zeros(n_envs, dtype=bool)))
    np.testing.assert_array_equal(np.concatenate(pieces), counted)
    np.testing.assert_array_equal(clock.next_steps, np.where(starts[n_steps], 0, t))


def test_a_step_that_was_not_stored() -> None:
    clock = EpisodeClock(2)
    clock.read(np.array([[1, 1], [0, 0]]), np.array([False, False]))
    clock.skip(np.array([False, True]))
    np.testing.assert_array_equal(clock.next_steps, [3, 0])
    np.testing.assert_array_equal(clock.read(np.array([[0, 1], [0, 0]]), np.array([False, False])), [[3, 0], [4, 1]])
