"""What the environments with finitely many states share: actions checked, pictures drawn and shown."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled, ResetNeeded

if TYPE_CHECKING:
    from sb3_avgcorr.tabular import FiniteMDP

Observation = npt.NDArray[np.float32]
Frame = npt.NDArray[np.uint8]


class FiniteEnv(gym.Env[Observation, np.int64]):
    """
    Base of tasks with finitely many states, which know their exact MDP.

    :param render_mode: ``"human"``, ``"rgb_array"`` or None.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 8}  # noqa: RUF012  (Gymnasium's own way)
    action_space: gym.spaces.Discrete

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None; got {render_mode!r}")
        self.render_mode = render_mode
        self._state: int | None = None
        self._window: Any = None
        self._clock: Any = None

    @property
    def state(self) -> int:
        """Index of the current state, as in ``finite_mdp``. May be set, to go on from another state."""
        if self._state is None:
            raise ResetNeeded("call reset() before step() and render()")
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        self._state = int(state)

    @abstractmethod
    def finite_mdp(self, gamma: float) -> FiniteMDP:
        """
        This environment as an exact finite MDP, its states numbered and observed as here. Needs SciPy.

        :param gamma: Discount factor.
        """

    @abstractmethod
    def _draw(self) -> Frame:
        """Picture of the current state, shape (height, width, 3)."""

    def _check_action(self, action: Any) -> int:
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer from 0 to {self.action_space.n - 1}; got {action!r}")
        return int(action)

    def render(self) -> Frame | None:
        if self.render_mode is None:
            gym.logger.warn("render() was called without a render_mode; pass it to gym.make(), e.g. render_mode='rgb_array'")
            return None
        frame = self._draw()
        if self.render_mode == "rgb_array":
            return frame
        self._show(frame)
        return None

    def _show(self, frame: Frame) -> None:
        try:
            import pygame
        except ImportError as error:
            raise DependencyNotInstalled(
                "render_mode='human' needs pygame: pip install 'gymnasium[classic-control]'"
            ) from error
        if self._window is None:
            pygame.init()
            pygame.display.init()
            pygame.display.set_caption(type(self).__name__)
            self._window = pygame.display.set_mode((frame.shape[1], frame.shape[0]))
            self._clock = pygame.time.Clock()
        # pygame counts columns first
        self._window.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self.metadata["render_fps"])

    def close(self) -> None:
        if self._window is not None:
            import pygame

            pygame.display.quit()
            pygame.quit()
            self._window = self._clock = None
