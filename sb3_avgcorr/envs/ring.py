"""Where states recur: round and round a ring, of which the discounted return counts little but the beginning."""

from __future__ import annotations

from abc import abstractmethod
from math import cos, isfinite, pi, sin
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from sb3_avgcorr.envs._finite import FiniteEnv, Frame, Observation

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

DictObservation = dict[str, Observation]
ELSEWHERE = 0.6  # what a cell outside the first quarter pays at strength 1, beside 1 inside it


class Laps(FiniteEnv):
    """
    What the ring and the carousel share: laps that are walked whatever one does, reward noise, and the picture.

    :param lap: number of steps of a lap, a multiple of 4
    :param laps: number of laps of an episode
    :param strength: how much the rest of the ring pays for the opposite of what its first quarter pays for, 0 to 1
    :param noise: standard deviation of the Gaussian noise on each reward
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(self, lap: int, laps: int, strength: float, noise: float, render_mode: str | None) -> None:
        super().__init__(render_mode)
        if isinstance(laps, bool) or not isinstance(laps, (int, np.integer)) or laps < 1:
            raise ValueError(f"laps={laps!r} must be a whole number of laps, 1 or more")
        if not 0.0 <= strength <= 1.0:
            raise ValueError(f"strength={strength!r} must be from 0 (no conflict) to 1")
        if not (noise >= 0.0 and isfinite(noise)):
            raise ValueError(f"noise={noise!r} must be a standard deviation, 0 or more")
        self.lap, self.laps, self.length = int(lap), int(laps), int(lap) * int(laps)
        self.strength, self.noise = float(strength), float(noise)

    @property
    def place(self) -> int:
        """Where on the ring the agent is, 0 at the start. All laps are alike: it does not tell the time."""
        return self.state % self.lap

    def in_first_quarter(self) -> bool:
        """Whether the coming step is one of the first quarter of a lap."""
        return 4 * self.place < self.lap

    @abstractmethod
    def _observation(self) -> DictObservation:
        """What is seen before the coming step."""

    @abstractmethod
    def _offset(self) -> float:
        """How far outside the ring the agent is drawn, -1 to 1."""

    def _begin(self) -> tuple[DictObservation, dict[str, Any]]:
        self.state = 0
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    def _check_running(self) -> None:
        if self.state >= self.length:
            raise ResetNeeded("the episode is over: call reset() before step()")

    def _advance(self, reward: float) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        # A noise of 0 draws as well, so that the knob changes rewards only.
        reward += self.noise * self.np_random.standard_normal()
        self.state += 1
        if self.render_mode == "human":
            self.render()
        # The end belongs to the task, as in LongTail: a termination, not a time limit from outside.
        return self._observation(), float(reward), self.state == self.length, False, {}

    def _draw(self) -> Frame:
        frame = np.full((240, 240, 3), 255, dtype=np.uint8)
        row, column = np.mgrid[:240, :240]
        radius = np.hypot(row - 110, column - 120)
        # clockwise from the top
        turn = np.arctan2(column - 120, 110 - row) % (2 * pi)
        track = np.abs(radius - 75) < 25
        frame[track] = np.where((turn < pi / 2)[..., None], (190, 225, 190), (250, 215, 175))[track]
        frame[np.abs(radius - 75) < 1] = 200
        angle, distance = 2 * pi * self.place / self.lap, 75 + 20 * self._offset()
        near = np.hypot(row - (110 - distance * cos(angle)), column - (120 + distance * sin(angle))) < 7
        frame[near] = (70, 110, 200)
        # how much of the episode is over
        frame[222:232, 10:230] = 225
        frame[222:232, 10 : 10 + 220 * self.state // self.length] = 60
        return frame


class RingEnv(Laps):
    """
    A ring of cells, walked round whatever one does. Every episode starts in cell 0 and has ``laps`` laps. In the first
    quarter of the ring action 1 earns +1 and action 0 earns -1; elsewhere action 1 earns ``-0.6 strength`` and action 0
    ``+0.6 strength``. Gaussian noise is added to each reward.

    The observation is a Dict: ``"observation"``, for the actor, is always 1 and tells nothing; ``"privileged"``, for the
    critic and the correction, is the cell, one-hot (:class:`~sb3_avgcorr.AsymmetricActorCriticPolicy` with
    ``actor_keys=["observation"]``). So the actor has to choose one probability for all cells. At γ = 0.8 the first quarter
    of 12 cells holds 52 % of the discounted weight of a lap, and the *discounted* return wants action 1 at every strength;
    the uncorrected gradient weights all cells alike and wants action 0 as soon as ``0.6 strength > 1/3``. So does the
    undiscounted return.

    The cell tells all that matters, and nothing about the lap. The weight ``γ^t`` is next to 0 from the second lap on, so
    that only the beginning of each episode is learned from; its average over the laps of a cell has the same expectation,
    and uses every lap.

    State t of ``finite_mdp`` is step t, in cell ``t % cells``. Episodes terminate after ``cells * laps`` steps.

    :param laps: number of laps of an episode
    :param cells: number of cells, a multiple of 4
    :param strength: how much the rest of the ring pays for the opposite action, 0 (nothing: no conflict) to 1
    :param noise: standard deviation of the Gaussian noise on each reward
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(
        self, laps: int = 50, cells: int = 12, strength: float = 1.0, noise: float = 2.0, render_mode: str | None = None
    ) -> None:
        if isinstance(cells, bool) or not isinstance(cells, (int, np.integer)) or cells < 4 or cells % 4:
            raise ValueError(f"cells={cells!r} must be a multiple of 4, so that a quarter of the ring is whole cells")
        super().__init__(cells, laps, strength, noise, render_mode)
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space: gym.spaces.Dict = gym.spaces.Dict(  # type: ignore[assignment]
            {
                "observation": gym.spaces.Box(0.0, 1.0, (1,), np.float32),
                "privileged": gym.spaces.Box(0.0, 1.0, (self.lap,), np.float32),
            }
        )
        pays = np.where(4 * np.arange(self.lap) < self.lap, 1.0, -ELSEWHERE * self.strength)
        self._rewards = np.stack((-pays, pays), axis=1)
        self._response = 0.0  # the last action as -1 or 1, for the picture

    def reset(  # type: ignore[override]  # a Dict, where the other finite environments have an array
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[DictObservation, dict[str, Any]]:
        super().reset(seed=seed)
        self._response = 0.0
        return self._begin()

    def step(  # type: ignore[override]
        self, action: np.int64
    ) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        chosen = self._check_action(action)
        self._check_running()
        self._response = 2.0 * chosen - 1.0
        return self._advance(self._rewards[self.place, chosen])

    def _observation(self) -> DictObservation:
        return {"observation": np.ones(1, np.float32), "privileged": np.eye(self.lap, dtype=np.float32)[self.place]}

    def _offset(self) -> float:
        return self._response

    def state_observations(self) -> DictObservation:
        """
        What is observed in each state of ``finite_mdp``, as a batch for an SB3 policy.

        :return: the observations, with one row a state
        """
        cells = np.tile(np.eye(self.lap, dtype=np.float32), (self.laps, 1))
        return {"observation": np.ones((self.length, 1), np.float32), "privileged": cells}

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        """
        This environment as an exact finite MDP. Its observations are those of ``state_observations`` side by side.

        :param gamma: Discount factor.
        """
        from scipy import sparse

        from sb3_avgcorr.tabular import FiniteMDP

        P = sparse.eye_array(self.length, k=1, format="csr")  # one step on, whatever the action; nowhere from the last
        termination = np.zeros((self.length, 2))
        termination[-1] = 1.0
        return FiniteMDP(
            [P, P],
            np.tile(self._rewards, (self.laps, 1)),
            np.arange(self.length) == 0,
            gamma,
            termination=termination,
            observations=np.hstack(list(self.state_observations().values())),
        )
