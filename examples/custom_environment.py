"""
A task of one's own: write it as a Gymnasium environment, let SB3 check it, register it, train on it.

    python examples/custom_environment.py

Registered in a module that Python finds, it can be used by name on the command line, too:

    cd examples
    sb3-avgcorr diagnose --env custom_environment:Corridor-v0
    sb3-avgcorr compare --env custom_environment:Corridor-v0 --seeds 3 --steps 20000
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from sb3_avgcorr import AveragingPPO


class CorridorEnv(gym.Env[np.ndarray, np.int64]):
    """
    A corridor that is walked from its left end, with a treasure at the right one. Every other step slips.

    :param length: cells from the start to the treasure
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, length: int = 20) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length
        self.cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 0.5:
            self.cell = int(np.clip(self.cell + (1 if action == 1 else -1), 0, self.length))
        arrived = self.cell == self.length
        return self._observation(), 1.0 if arrived else -0.01, arrived, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.cell / self.length], dtype=np.float32)


gym.register("Corridor-v0", CorridorEnv, max_episode_steps=200)


def main(total_timesteps: int = 20_000) -> AveragingPPO:
    """
    Train, and print the learned weight of every fifth cell.

    :param total_timesteps: environment steps
    :return: the model
    """
    check_env(CorridorEnv())
    model = AveragingPPO("MlpPolicy", "Corridor-v0", n_steps=1000, batch_size=250, gamma=0.95, seed=0, device="cpu")
    model.learn(total_timesteps)
    cells = np.linspace(0.0, 1.0, 5, dtype=np.float32)[:, None]
    for (cell,), weight in zip(cells, model.predict_correction(cells), strict=True):
        print(f"{cell:.0%} of the corridor: weight {weight:.2f}")
    return model


if __name__ == "__main__":
    th.set_num_threads(1)
    main()
