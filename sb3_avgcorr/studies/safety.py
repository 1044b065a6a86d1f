"""A drop-in replacement must not be worse than what it replaces: PPO and AveragingPPO with SB3's default settings."""

from __future__ import annotations

from typing import Any

from sb3_avgcorr.studies.variants import CORRECTIONS, Expectation, Task, VariantStudy

#: SB3's defaults, which take the place of the tuned settings of our file, on 4 environments with normalisation
SB3_DEFAULTS: dict[str, Any] = {
    "normalize": True,
    "n_envs": 4,
    "n_steps": 512,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "learning_rate": 0.0003,
    "policy_kwargs": {},
    "normalize_correction": True,
}

SAFETY = VariantStudy(
    "safety",
    "never worse than PPO: SB3's defaults on seven tasks",
    "Never worse than PPO",
    "HalfCheetah, Hopper, Walker2d and Swimmer with SB3's default hyperparameters (4 environments, rollouts of 2048 steps, "
    "`VecNormalize`); CartPole, Pendulum (without gSDE) and Acrobot with our settings (`hyperparams/averaging_ppo.yml`). "
    "*none* is PPO, *auto* corrects as far as it pays (the default). *Not significantly worse*: the interval of the "
    "difference at the end of training reaches above 0; *within 5 %*: the mean is not lower by more than 5 % of PPO's.",
    (
        *(Task(f"{name}-v5", 300_000, SB3_DEFAULTS) for name in ("HalfCheetah", "Hopper", "Walker2d", "Swimmer")),
        Task("CartPole-v1", 50_000),
        Task("Pendulum-v1", 100_000, {"use_sde": False}),
        Task("Acrobot-v1", 100_000),
    ),
    {variant: CORRECTIONS[variant] for variant in ("none", "auto")},
    (
        Expectation("auto is not significantly worse than PPO", "auto", "not significantly worse than", "none"),
        Expectation("auto's mean is within 5 % of PPO's or above", "auto", "within 5 % of", "none"),
    ),
    overall=True,
)
