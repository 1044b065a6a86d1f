"""The paper's discrete Reacher, small enough for every state distribution to be solved for exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np

from sb3_avgcorr.envs._finite import FiniteEnv, Frame, Observation

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

SIZE = 9
N_STATES = SIZE * SIZE
CENTRE = N_STATES // 2
STEP_REWARD = -0.01
# The eight moves of a king, (dx, dy), in the order of the actions.
MOVES = np.array([(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0)])
MOVES.setflags(write=False)

_CELLS = np.stack(np.divmod(np.arange(N_STATES), SIZE), axis=1)  # (column, row) of each state
_OBSERVATIONS = ((_CELLS - SIZE // 2) / 5).astype(np.float32)  # -0.8, -0.6, ..., 0.8
# Next state of each state and action, away from the centre.
_NEXT = np.clip(_CELLS[:, None] + MOVES, 0, SIZE - 1) @ (SIZE, 1)


class DotReacherEnv(FiniteEnv):
    """
    A 9 × 9 grid with the goal in the centre (Section 6 and Appendix E of the paper). Eight actions, the moves of a king in the
    order of ``MOVES``; a move over the border stops there. From the centre any action leads to a cell drawn uniformly from
    all 81. Reward: 0 on arriving at the centre, -0.01 otherwise. Observation: (x, y), each from -0.8 to 0.8 in steps of 0.2.
    Episodes never terminate; the registered ``avgcorr/DotReacher-v0`` cuts them after 500 steps.

    State ``column * 9 + row`` has x = 0.2 column - 0.8, y = 0.2 row - 0.8.

    :param start: Where episodes start: ``"uniform"`` over all cells (the paper), ``"corner"`` (x = y = -0.8), or one cell
        as (column, row), each from 0 to 8. With a uniform start there is next to no discount mismatch to correct.
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(
        self, start: Literal["uniform", "corner"] | tuple[int, int] = "uniform", render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(_OBSERVATIONS[0], _OBSERVATIONS[-1], dtype=np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        if start == "uniform":
            self._start: int | None = None
        else:
            cell = (0, 0) if start == "corner" else start
            if not (isinstance(cell, (tuple, list)) and len(cell) == 2 and all(c in range(SIZE) for c in cell)):
                raise ValueError(
                    f"start must be 'uniform', 'corner' or (column, row), each from 0 to {SIZE - 1}; got {start!r}"
                )
            self._start = int(cell[0]) * SIZE + int(cell[1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(N_STATES)) if self._start is None else self._start
        if self.render_mode == "human":
            self.render()
        return _OBSERVATIONS[self.state].copy(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        move = self._check_action(action)
        if self.state == CENTRE:
            self.state = int(self.np_random.integers(N_STATES))
        else:
            self.state = int(_NEXT[self.state, move])
        if self.render_mode == "human":
            self.render()
        reward = 0.0 if self.state == CENTRE else STEP_REWARD
        return _OBSERVATIONS[self.state].copy(), reward, False, False, {}

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        from sb3_avgcorr.tabular import FiniteMDP

        P = np.eye(N_STATES)[_NEXT]
        P[CENTRE] = 1 / N_STATES
        rho = np.full(N_STATES, 1 / N_STATES) if self._start is None else np.eye(N_STATES)[self._start]
        return FiniteMDP(P, STEP_REWARD * (1 - P[:, :, CENTRE]), rho, gamma, observations=_OBSERVATIONS.copy())

    def _draw(self) -> Frame:
        colours = np.full((SIZE, SIZE, 3), 235, dtype=np.uint8)
        colours[SIZE // 2, SIZE // 2] = (120, 190, 120)
        column, row = _CELLS[self.state]
        colours[SIZE - 1 - row, column] = (240, 120, 40)  # y points up
        frame = colours.repeat(32, axis=0).repeat(32, axis=1)
        frame[::32], frame[:, ::32] = 200, 200
        return frame
