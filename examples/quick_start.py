"""
Swap PPO for AveragingPPO, and look at what the correction learned.

    python examples/quick_start.py
"""

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import sb3_avgcorr  # noqa: F401  # registers the avgcorr/ environments
from sb3_avgcorr import AveragingPPO

# DotReacher: a 9x9 grid whose centre is the goal; started in a corner, early states differ much from late ones.
env = make_vec_env("avgcorr/DotReacher-v0", n_envs=4, seed=0, env_kwargs={"start": "corner"})
model = AveragingPPO("MlpPolicy", env, n_steps=512, gamma=0.9, seed=0, device="cpu")
model.learn(40_000, progress_bar=True)

mean, std = evaluate_policy(model, env, n_eval_episodes=10)
print(f"\nReturn of 10 episodes: {mean:.2f} ± {std:.2f}")

# ĉ(s) = d_{π,γ}(s) / d_π(s): above 1 where the discounted objective wants more weight than the rollout gives.
axis = np.linspace(-0.8, 0.8, 9, dtype=np.float32)
cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
print("Learned correction over the grid (the start is the upper left corner):")
print(np.array2string(model.predict_correction(cells).reshape(9, 9), precision=2, suppress_small=True))
print(f"Weights of the last rollout: {model.correction_weights.min():.2f} to {model.correction_weights.max():.2f}")
