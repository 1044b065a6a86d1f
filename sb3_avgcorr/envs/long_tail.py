"""Where the discount mismatch changes what is learned: a few early steps, and a long tail that wants the opposite."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from sb3_avgcorr.envs._finite import FiniteEnv, Frame, Observation

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

DictObservation = dict[str, Observation]


def check_long_tail(strength: float, early: int, length: int) -> None:
    """
    Raise a ValueError that names the argument, its value and what would be right.

    :param strength: strength of the tail, from 0 to 1
    :param early: number of early steps
    :param length: number of steps of an episode
    """
    if not 0.0 <= strength <= 1.0:
        raise ValueError(f"strength={strength!r} must be from 0 (no conflict) to 1")
    for name, value in (("early", early), ("length", length)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of steps, 1 or more")
    if early >= length:
        raise ValueError(f"early={early!r} must be less than length={length!r}: the tail is what comes after it")


class LongTail(FiniteEnv):
    """
    What the discrete and the continuous form share: the clock, the cue, the observation and the picture.

    :param strength: how much a late step pays for the opposite of what an early one pays for; 0: nothing
    :param early: number of early steps
    :param length: number of steps of an episode
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(self, strength: float = 0.2, early: int = 5, length: int = 200, render_mode: str | None = None) -> None:
        check_long_tail(strength, early, length)
        super().__init__(render_mode)
        self.strength, self.early, self.length = float(strength), int(early), int(length)
        self.observation_space: gym.spaces.Dict = gym.spaces.Dict(  # type: ignore[assignment]
            {
                "observation": gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
                "privileged": gym.spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )
        self._t: int | None = None
        self._cue = 0.0
        self._response = 0.0  # the last action, from -1 to 1

    @property
    def t(self) -> int:
        """The step inside the episode, 0 at its first."""
        if self._t is None:
            raise ResetNeeded("call reset() before step() and render()")
        return self._t

    @abstractmethod
    def _draw_cue(self) -> float:
        """The cue of the next step."""

    def reset(  # type: ignore[override]  # a Dict, where the other finite environments have an array
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[DictObservation, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._cue, self._response = 0, self._draw_cue(), 0.0
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    def _advance(self, response: float, reward: float) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        if self.t >= self.length:
            raise ResetNeeded("the episode is over: call reset() before step()")
        self._t, self._cue, self._response = self.t + 1, self._draw_cue(), response
        if self.render_mode == "human":
            self.render()
        # The clock is part of the state, so that its end is a termination, not a time limit from outside.
        return self._observation(), reward, self.t == self.length, False, {}

    def _observation(self) -> DictObservation:
        return {
            "observation": np.array([self._cue], dtype=np.float32),
            "privileged": np.array([self.t / self.length, self.t < self.early], dtype=np.float32),
        }

    def _draw(self) -> Frame:
        frame = np.full((160, 320, 3), 255, dtype=np.uint8)
        # the clock: early steps green, the tail orange, what is over in full colour
        column = np.arange(300) * self.length // 300
        colours = np.where((column < self.early)[:, None], (60, 150, 60), (240, 130, 30))
        colours = np.where((column < self.t)[:, None], colours, 255 - (255 - colours) // 4)
        frame[130:150, 10:310] = colours
        # the cue above, the response to it below, both from -1 to 1
        frame[20:110, 159:161] = 200
        for value, rows, colour in (
            (self._cue, slice(30, 55), (70, 110, 200)),
            (self._response, slice(75, 100), (60, 60, 60)),
        ):
            low, high = sorted((160, 160 + round(140 * value)))
            frame[rows, low : high + 1] = colour
        return frame


class LongTailEnv(LongTail):
    """
    Follow the cue, or go against it? At each step the cue is -1 or +1 by chance, and the action 0 or 1. In the first
    ``early`` steps of an episode following the cue (0 for -1, 1 for +1) earns +1 and going against it -1; in all steps
    after these, the long tail, following earns ``-strength`` and going against it ``+strength``.

    The observation is a Dict: ``"observation"``, the cue, is for the actor; ``"privileged"``, the share of the episode that
    is over and whether the step is an early one, is for the critic (:class:`~sb3_avgcorr.AsymmetricActorCriticPolicy` with
    ``actor_keys=["observation"]``). An actor that sees only the cue has to treat early and late steps alike. The
    *discounted* objective then wants the cue followed as long as ``strength < (1 - γ^early) / (γ^early - γ^length)``, 0.69
    for γ = 0.9; the uncorrected gradient weights all steps alike and wants the opposite as soon as
    ``strength > early / (length - early)``, 0.026. So does the undiscounted return.

    State ``2 t + (cue > 0)`` is step t. Episodes terminate after ``length`` steps.

    :param strength: what a late step pays for going against the cue, 0 to 1; 0: no conflict
    :param early: number of early steps
    :param length: number of steps of an episode
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    def __init__(self, strength: float = 0.2, early: int = 5, length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(strength, early, length, render_mode)
        self.action_space = gym.spaces.Discrete(2)

    def _draw_cue(self) -> float:
        return 1.0 if self.np_random.random() < 0.5 else -1.0

    @property
    def state(self) -> int:
        """Index of the current state, as in ``finite_mdp``. May be set, to go on from another state."""
        return 2 * self.t + (self._cue > 0)

    @state.setter
    def state(self, state: int) -> None:
        self._t, self._cue = int(state) // 2, 1.0 if state % 2 else -1.0

    def step(  # type: ignore[override]
        self, action: np.int64
    ) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        response = 2.0 * self._check_action(action) - 1.0
        follows = response * self._cue  # 1 or -1
        return self._advance(response, follows if self.t < self.early else -self.strength * follows)

    def state_observations(self) -> DictObservation:
        """
        List what is observed in each state.

        :return: what is observed in each state of ``finite_mdp``, as a batch for an SB3 policy
        """
        t, bit = np.divmod(np.arange(2 * self.length), 2)
        privileged = np.stack((t / self.length, t < self.early), axis=1)
        return {"observation": (2.0 * bit - 1.0)[:, None].astype(np.float32), "privileged": privileged.astype(np.float32)}

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        """
        This environment as an exact finite MDP. Its observations are those of ``state_observations`` side by side.

        :param gamma: Discount factor.
        """
        from scipy import sparse

        from sb3_avgcorr.tabular import FiniteMDP

        n = 2 * self.length
        seen = self.state_observations()
        follows = seen["observation"] * (-1.0, 1.0)
        r = np.where(np.arange(n)[:, None] < 2 * self.early, follows, -self.strength * follows)
        # From step t to either cue of step t + 1, whatever the action; nowhere from the last.
        P = sparse.csr_array(np.kron(np.eye(self.length, k=1), np.full((2, 2), 0.5)))
        termination = np.zeros((n, 2))
        termination[-2:] = 1.0
        rho = np.zeros(n)
        rho[:2] = 0.5
        return FiniteMDP([P, P], r, rho, gamma, termination=termination, observations=np.hstack(list(seen.values())))


class LongTailContinuousEnv(LongTail):
    """
    A set-point to track, or to mirror? At each step the cue x is uniform in [-1, 1] and the action a in [-1, 1]. In the first
    ``early`` steps of an episode the reward is ``-(a - x)²``, in all steps after these ``-strength (a + x)²``: the long
    tail wants the mirror image. Observations as in :class:`LongTailEnv`.

    An actor that sees only the cue does best with ``a = k x``, where the gain k (``optimal_gain``) balances the two: for the
    discounted return at γ = 0.9 with the default strength k = 0.55, for the undiscounted one -0.77.

    :param strength: weight of a late step beside an early one, 0 to 1; 0: no conflict
    :param early: number of early steps
    :param length: number of steps of an episode
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    action_space: gym.spaces.Box  # type: ignore[assignment]

    def __init__(self, strength: float = 0.2, early: int = 5, length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(strength, early, length, render_mode)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _draw_cue(self) -> float:
        return float(self.np_random.uniform(-1.0, 1.0))

    def step(  # type: ignore[override]
        self, action: Observation
    ) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        array = np.asarray(action, dtype=np.float64)
        if array.shape != (1,) or not np.isfinite(array).all():
            raise ValueError(f"action must be one finite number, with shape (1,); got {action!r}")
        response = min(max(float(array[0]), -1.0), 1.0)
        if self.t < self.early:
            reward = -((response - self._cue) ** 2)
        else:
            reward = -self.strength * (response + self._cue) ** 2
        return self._advance(response, reward)

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        """Not there: cues and actions are real numbers. ``optimal_gain`` is what is known exactly."""
        raise TypeError("LongTailContinuousEnv is not finite; avgcorr/LongTail-v0 is the finite form, with its exact MDP")

    def optimal_gain(self, gamma: float) -> float:
        """
        The k in ``a = k x`` that maximises the discounted return among all actors that see only the cue.

        :param gamma: discount factor; 1 for the undiscounted return
        """
        powers = gamma ** np.arange(self.length)
        early, late = powers[: self.early].sum(), self.strength * powers[self.early :].sum()
        return float((early - late) / (early + late))
