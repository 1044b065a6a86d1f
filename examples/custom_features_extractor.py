"""
A features extractor of one's own, as in SB3: the correction uses the features, and the algorithm alone trains the extractor.

    python examples/custom_features_extractor.py

The correction's network stands on what the critic's layers see. Fitting it leaves the extractor as it is, so that the actor
does not change; the extractor's parameters move in PPO's own update, as ever.
"""

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb3_avgcorr import AveragingPPO


class FourierFeatures(BaseFeaturesExtractor):
    """
    Sines of learned combinations of the observation, beside the observation itself.

    :param observation_space: a flat Box
    :param n_waves: number of sines
    """

    def __init__(self, observation_space: gym.spaces.Box, n_waves: int = 16) -> None:
        size = int(np.prod(observation_space.shape))
        super().__init__(observation_space, features_dim=size + n_waves)
        self.waves = nn.Linear(size, n_waves)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return th.cat((observations, th.sin(self.waves(observations))), dim=1)


def main(total_timesteps: int = 20_000) -> AveragingPPO:
    """
    Train on CartPole, and print what was learned.

    :param total_timesteps: environment steps
    :return: the model
    """
    model = AveragingPPO(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=1000,
        batch_size=250,
        policy_kwargs={"features_extractor_class": FourierFeatures, "features_extractor_kwargs": {"n_waves": 16}},
        seed=0,
        device="cpu",
    )
    model.learn(total_timesteps)
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    print(f"Mean return of the last {len(returns)} episodes: {np.mean(returns):.0f}")
    upright, far = model.predict_correction(np.array([[0.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]], dtype=np.float32))
    print(f"Weight of a state like the first one: {upright:.2f}; two metres from there: {far:.2f}")
    return model


if __name__ == "__main__":
    th.set_num_threads(1)
    main()
