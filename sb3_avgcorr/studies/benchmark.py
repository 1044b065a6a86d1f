"""Should I use it? What an SB3 user would do: RL Zoo's settings on MuJoCo and Box2D, with and without the correction."""

from __future__ import annotations

from sb3_avgcorr.studies.safety import SB3_DEFAULTS
from sb3_avgcorr.studies.variants import Expectation, Task, VariantStudy

#: what a drop-in replacement must keep, and what is hoped for
EXPECTATIONS = (
    Expectation("auto is not significantly worse than PPO", "auto", "not significantly worse than", "none"),
    Expectation("auto is better than PPO", "auto", "better than", "none"),
    Expectation("averaging is at most a tenth worse than PPO", "averaging", "as good as", "none"),
)
NOTE = (
    "What an SB3 user would do: our settings for the task (RL Zoo's, with `VecNormalize` where it has it). *none* is PPO, "
    "*power* and *averaging* correct in full, *auto* corrects as far as it pays."
)

MUJOCO_SB3 = VariantStudy(
    "mujoco-sb3",
    "MuJoCo under RL Zoo's settings: should I use it?",
    "MuJoCo under RL Zoo's settings",
    f"{NOTE} On Hopper 1000 is what an episode pays in which it stands for all of its 1000 steps. That PPO stays there with "
    "RL Zoo's settings [others have found](https://github.com/DLR-RM/rl-baselines3-zoo/issues/376), too; with SB3's defaults "
    "it learns to hop (`sb3-avgcorr reproduce safety`).",
    tuple(Task(f"{name}-v5", 1_000_000) for name in ("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Ant")),
    expectations=EXPECTATIONS,
    overall=True,
)
BOX2D_SB3 = VariantStudy(
    "box2d-sb3",
    "LunarLander and BipedalWalker under RL Zoo's settings",
    "Box2D under RL Zoo's settings",
    f"{NOTE} BipedalWalker has SB3's default hyperparameters (4 environments, rollouts of 2048 steps, `VecNormalize`): RL "
    "Zoo's are made for 5M steps, and end at -48 (one seed) after 1M, which are 15 of their rollouts.",
    (Task("LunarLander-v3", 1_000_000), Task("BipedalWalker-v3", 1_000_000, SB3_DEFAULTS)),
    expectations=EXPECTATIONS,
    quick_steps=100_000,
    overall=True,
)
