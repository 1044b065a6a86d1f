"""A cabin on a turning carousel: the ring's relative with continuous motion."""

from __future__ import annotations

from math import cos, exp, pi, sin
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from sb3_avgcorr.envs._finite import Observation
from sb3_avgcorr.envs.ring import DictObservation, Laps

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

LAP = 24  # steps
DT = 0.1  # s
RATE = 20.0  # 1/s, of the cabin's spring and its damper, which is the critical one
RAIL = 0.5  # m, from the middle of the track to the rail on either side
GUST = 0.5  # m: the strongest gust moves the cabin's rest by so much, an action of 1 by 1 m
SPEED = 20.0  # m/s, unit of the velocity in the observation
# After a step a deviation (x, v) from the rest is (X_X x + X_V v, V_X x + V_V v): the exact solution for critical damping.
_Q = RATE * DT
X_X, X_V = exp(-_Q) * (1 + _Q), exp(-_Q) * DT
V_X, V_V = -exp(-_Q) * RATE * _Q, exp(-_Q) * (1 - _Q)


class CarouselEnv(Laps):
    """
    A cabin on a carousel that turns once in 24 steps of 0.1 s, whatever one does. The cabin can swing inwards and outwards
    on a spring with critical damping (rate 20/s). An action in [-1, 1] moves the point where it comes to rest by up
    to 1 m outwards, a gust of wind by up to 0.5 m; each step has its own gust, uniform and independent of all others.

    In the first quarter of each lap the cabin should be at the outer rail (+0.5 m), elsewhere at the inner one (-0.5 m).
    Reward: minus the squared distance from that rail in units of 0.5 m, elsewhere times ``strength``, plus noise.

    The observation is a Dict. ``"observation"``, for the actor, is the coming gust (0.5 m), which tells nothing about
    where the cabin is; nor is there anything else to tell it, since an actor that knew its own swing could keep the
    time by it. ``"privileged"``, for the critic and the correction: cosine and sine of the carousel's angle, whether it is in
    the first quarter, the cabin's offset (m) and its velocity (20 m/s). All laps are alike.

    An actor that sees only the gust does best to cancel it and to hold one offset: ``a = optimal_offset(γ) - 0.5 gust``.
    With the default strength that is 0.23 m outwards for the discounted return at γ = 0.8, and 0.25 m inwards for the
    undiscounted one, which is also what the uncorrected gradient wants.

    Episodes start at rest at an offset uniform in ±0.5 m and terminate after ``24 * laps`` steps.

    :param laps: number of laps of an episode
    :param strength: weight of the rest of a lap beside its first quarter, 0 (no conflict) to 1
    :param noise: standard deviation of the Gaussian noise on each reward
    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    action_space: gym.spaces.Box  # type: ignore[assignment]

    def __init__(self, laps: int = 25, strength: float = 1.0, noise: float = 1.0, render_mode: str | None = None) -> None:
        super().__init__(LAP, laps, strength, noise, render_mode)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        # The offset stays within 1.93 m and the velocity within 18.8 m/s, whatever actions and gusts do.
        told = np.array([1.0, 1.0, 1.0, 2.0, 1.0], np.float32)
        self.observation_space: gym.spaces.Dict = gym.spaces.Dict(  # type: ignore[assignment]
            {
                "observation": gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
                "privileged": gym.spaces.Box(told * np.array([-1, -1, 0, -1, -1], np.float32), told, dtype=np.float32),
            }
        )
        self.offset, self.velocity, self.gust = 0.0, 0.0, 0.0

    def reset(  # type: ignore[override]  # a Dict, where the finite environments have an array
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[DictObservation, dict[str, Any]]:
        super().reset(seed=seed)
        self.offset, self.velocity = self.np_random.uniform(-RAIL, RAIL), 0.0
        self.gust = self.np_random.uniform(-1.0, 1.0)
        return self._begin()

    def step(  # type: ignore[override]
        self, action: Observation
    ) -> tuple[DictObservation, float, bool, bool, dict[str, Any]]:
        array = np.asarray(action, dtype=np.float64)
        if array.shape != (1,) or not np.isfinite(array).all():
            raise ValueError(f"action must be one finite number, with shape (1,); got {action!r}")
        self._check_running()
        rail, weight = (RAIL, 1.0) if self.in_first_quarter() else (-RAIL, self.strength)
        rest = min(max(float(array[0]), -1.0), 1.0) + GUST * self.gust
        x, v = self.offset - rest, self.velocity
        self.offset, self.velocity = rest + X_X * x + X_V * v, V_X * x + V_V * v
        self.gust = self.np_random.uniform(-1.0, 1.0)
        return self._advance(-weight * ((self.offset - rail) / RAIL) ** 2)

    def _observation(self) -> DictObservation:
        angle = 2 * pi * self.place / LAP
        told = (cos(angle), sin(angle), self.in_first_quarter(), self.offset, self.velocity / SPEED)
        return {"observation": np.array([self.gust], np.float32), "privileged": np.array(told, np.float32)}

    def _offset(self) -> float:
        return self.offset / 2  # it stays within 2 m

    def finite_mdp(self, gamma: float) -> FiniteMDP:
        """Not there: the cabin moves continuously. ``optimal_offset`` is what is known exactly."""
        raise TypeError("CarouselEnv is not finite; avgcorr/Ring-v0 is the finite form, with its exact MDP")

    def optimal_offset(self, gamma: float) -> float:
        """
        The α in ``a = α - 0.5 gust`` that maximises the discounted return among all actors that see only the gust.

        The offset is linear in the rests of the steps before. Whatever the actor does to gusts, the mean offset depends on its
        mean rest α alone, and its variance, which only costs, is least where gusts are cancelled. With a constant rest the
        offset after t steps is ``α + (1 + q) exp(-q) (y_0 - α)`` with q = 20/s · 0.1 s · t, and the return is quadratic in α.

        :param gamma: discount factor; 1 for the undiscounted return
        """
        t = np.arange(self.length)
        first = 4 * (t % LAP) < LAP
        weights = gamma**t * np.where(first, 1.0, self.strength)
        q = RATE * DT * (t + 1)
        reach = 1 - (1 + q) * np.exp(-q)  # how far from y_0, whose mean is 0, to α
        return float((weights * reach * np.where(first, RAIL, -RAIL)).sum() / (weights * reach**2).sum())
