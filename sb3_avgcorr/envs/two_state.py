"""The paper's counterexample: without the correction a policy that cannot tell the two states apart learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from sb3_avgcorr.envs._finite import FiniteEnv, Frame, Observation

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

BOTTOM, TOP = 0, 1
# REWARDS[state, action]: the two states want opposite actions.
REWARDS = np.array([[-1.0, 1.0], [1.0, -1.0]])
REWARDS.setflags(write=False)


class TwoStateEnv(FiniteEnv):
    """
    Two states (Figure 1 of the paper). Every episode starts in the first; every action leads to the other state.
    Actions: 0 is "bottom", 1 is "top". In the first state top earns +1 and bottom -1, in the second it is the reverse.
    Observation: the state, one-hot. Episodes never terminate; the registered ``avgcorr/TwoState-v0`` cuts them after 20 steps.

    Rewards of the first state count more under any discount below 1, so top is the better of the two policies that cannot
    tell the states apart. But both states are visited equally often, and so the uncorrected gradient is 0.

    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._last_action: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self._last_action = 0, None
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._last_action = self._check_action(action)
        reward = float(REWARDS[self.state, self._last_action])
        self.state = 1 - self.state
        if self.render_mode == "human":
            self.render()
        return self._observation(), reward, False, False, {}

    def _observation(self) -> Observation:
        return np.eye(2, dtype=np.float32)[self.state]

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        from sb3_avgcorr.tabular import FiniteMDP

        P = np.zeros((2, 2, 2))
        P[0, :, 1] = P[1, :, 0] = 1.0
        return FiniteMDP(P, REWARDS, [1.0, 0.0], gamma, observations=np.eye(2, dtype=np.float32))

    def _draw(self) -> Frame:
        frame = np.full((160, 320, 3), 255, dtype=np.uint8)
        row, column = np.ogrid[:160, :320]
        for state in range(2):
            distance = np.hypot(row - 80, column - (80 + 160 * state))
            frame[distance < 44] = 60
            frame[distance < 40] = (240, 170, 60) if state == self.state else (235, 235, 235)
        # The action that led here: a bar above the states for top, below them for bottom.
        if self._last_action is not None:
            above = slice(14, 22) if self._last_action == TOP else slice(138, 146)
            frame[above, 80:240] = (70, 110, 200)
        return frame
