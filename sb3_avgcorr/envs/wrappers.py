"""Wrappers for the ways an episode may end. Usable by name from RL Zoo's ``env_wrapper``."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs


class TruncationAsTermination(gym.Wrapper, RecordConstructorArgs):
    """
    Report a time limit as the end of the task. So did old Gym, and the paper's results depend on it: SB3 then
    puts no value behind the last step. Put it around everything that truncates (``gym.make`` adds the time limit
    itself; RL Zoo's ``env_wrapper`` is applied after that).

    :param env: the environment
    """

    def __init__(self, env: gym.Env) -> None:
        inner: gym.Env = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, GeometricTermination) and not inner.terminate:
                raise ValueError(
                    "env is wrapped in GeometricTermination(terminate=False), whose ends must stay truncations (counted as "
                    "terminations they would discount a second time); wrap in TruncationAsTermination first"
                )
            inner = inner.env
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


class GeometricTermination(gym.Wrapper, RecordConstructorArgs):
    """
    End the episode after each step with probability ``1 - γ``. Step ``t`` is then reached with probability ``γ^t``, so
    that states come from ``d_{π,γ}`` and an uncorrected algorithm follows the gradient of the discounted
    start-state objective: the obvious alternative to correcting with weights.

    There are two consistent ways to report such an end, and two ways to get it wrong:

    - as a truncation, the algorithm keeping its ``gamma=γ`` (the default). The end says nothing about the task, so the
      value of the last state still counts: SB3 adds ``γ V(s')`` and the critic and the advantages are those of
      the original task, ``V_γ`` and ``A_γ``. Only the distribution of states changes, to the right one:
      ``E_{s~d_{π,γ}, a~π}[∇log π(a|s) A_γ(s,a)] = (1-γ) ∇J_γ``. Every other setting can stay as it is in the
      algorithms one compares with.
    - as a termination (``terminate=True``), with ``gamma=1``. The undiscounted return up to the random end has the
      expectation ``Σ_t γ^t E[r_t] = J_γ``: discounting has moved from the algorithm into the environment. Unbiased too,
      but noisier, since the critic's targets hold the chance of the end.
    - Wrong: terminations with ``gamma=γ``, which discount twice (by ``γ²`` a step), and truncations with ``gamma=1``,
      whose advantages are undiscounted.

    The draws come from a generator of the wrapper's own, seeded by ``reset(seed=)``: up to the end the trajectory is the
    one of the unwrapped environment. ``info["geometric_end"]`` tells whether an end was this wrapper's.

    :param env: the environment
    :param gamma: γ in (0, 1]; 1 never ends an episode
    :param terminate: report the end as termination instead of truncation
    """

    def __init__(self, env: gym.Env, gamma: float, terminate: bool = False) -> None:
        if not 0.0 < gamma <= 1.0:
            raise ValueError(f"gamma is {gamma!r}; it must be in (0, 1]")
        RecordConstructorArgs.__init__(self, gamma=gamma, terminate=terminate)
        gym.Wrapper.__init__(self, env)
        self.gamma = gamma
        self.terminate = terminate
        self._ends = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            # A second number in the seed, or the draws would repeat those of an environment with the same generator.
            self._ends = np.random.default_rng([seed, 1])
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        end = bool(self._ends.random() >= self.gamma) and not terminated
        info["geometric_end"] = end
        if self.terminate:
            return obs, reward, terminated or end, truncated and not end, info
        return obs, reward, terminated, truncated or end, info
