"""
Optuna search spaces: RL Zoo's space of the algorithm that is corrected, and the correction's own options.

Names given to Optuna are those of the arguments, so that a trial read back from a database (``--trial-id``) is turned into
hyperparameters by the converter alone.
"""

from collections.abc import Callable
from typing import Any

import optuna
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

from sb3_avgcorr.zoo.algorithms import ALGORITHMS

Sampler = Callable[[optuna.Trial, int, int, dict[str, Any]], dict[str, Any]]
Converter = Callable[[dict[str, Any]], dict[str, Any]]

#: what convert_correction() takes out of a trial's parameters
OPTIONS = (
    "correction_loss",
    "correction_scale",
    "correction_coef",
    "correction_learning_rate",
    "correction_lambda",
    "correction_epochs",
    "correction_batch_size",
    "correction_network",
    "correction_order",
    "correction_averaging",
    "correction_shrinkage",
    "normalize_correction",
    "normalize_before_weighting",
    "critic_learning_rate",
)


def sample_averaging(trial: optuna.Trial, max_epochs: int) -> dict[str, Any]:
    """
    :param trial: Optuna's trial
    :param max_epochs: most passes over a rollout that are worth trying
    :return: options of the averaging correction as Optuna names them
    """
    return {
        "correction_loss": trial.suggest_categorical("correction_loss", ["bce", "mse"]),
        # The two that the paper adds, for squared error only: a whole number, and a factor of either side of 1. They are
        # drawn in any case, because TPE models parameters jointly only where every trial has them.
        "correction_scale": trial.suggest_int("correction_scale", 1, 150),
        "correction_coef": trial.suggest_float("correction_coef", 0.1, 10.0, log=True),
        "correction_learning_rate": trial.suggest_float("correction_learning_rate", 1e-4, 1e-2, log=True),
        "correction_lambda": trial.suggest_categorical("correction_lambda", [0.7, 0.8, 0.9, 1.0]),
        "correction_epochs": trial.suggest_int("correction_epochs", 1, max_epochs, log=True),
        "correction_batch_size": trial.suggest_categorical("correction_batch_size", [64, 256, 1024]),
        "correction_network": trial.suggest_categorical("correction_network", ["shared", "separate"]),
        "correction_order": trial.suggest_categorical("correction_order", ["before", "after"]),
        "correction_averaging": trial.suggest_categorical("correction_averaging", [True, False]),
        "correction_shrinkage": trial.suggest_categorical("correction_shrinkage", [True, False]),
        **sample_weighting(trial),
    }


def sample_weighting(trial: optuna.Trial) -> dict[str, Any]:
    """
    :param trial: Optuna's trial
    :return: options of both corrections as Optuna names them
    """
    return {
        "normalize_correction": trial.suggest_categorical("normalize_correction", [True, False, "running"]),
        "normalize_before_weighting": trial.suggest_categorical("normalize_before_weighting", [True, False]),
    }


def convert_correction(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled: options as Optuna names them
    :return: arguments of the algorithm
    """
    options = dict(sampled)
    if options.get("correction_loss") == "bce":
        # Cross-entropy needs no scale, and None makes the losses commensurable.
        options.update(correction_scale=1.0, correction_coef=None)
    return options


def sample_bac(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    :param trial: Optuna's trial
    :return: hyperparameters of BAC, over the ranges that hold the paper's
    """
    return convert_bac(
        {
            "n_steps": trial.suggest_categorical("n_steps", [16, 32, 64, 128, 256]),
            "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.0001, 0.03, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "critic_learning_rate": trial.suggest_float("critic_learning_rate", 1e-4, 1e-2, log=True),
            "vf_coef": trial.suggest_float("vf_coef", 0.5, 20.0, log=True),
            "actor_units": trial.suggest_categorical("actor_units", [8, 16, 32, 64]),
            "critic_units": trial.suggest_categorical("critic_units", [32, 64, 128]),
        }
    )


def convert_bac(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled: BAC's parameters as Optuna names them
    :return: arguments of the algorithm
    """
    params = dict(sampled)
    actor, critic = params.pop("actor_units"), params.pop("critic_units")
    params["gamma"] = 1.0 - params.pop("one_minus_gamma")
    params["policy_kwargs"] = {"net_arch": {"pi": [actor, actor], "vf": [critic, critic]}}
    return params


def _sampler(name: str) -> Sampler:
    base = _base(name)[0]
    # One rollout of these is a minibatch of the others.
    max_epochs = 4 if name.endswith(("a2c", "bac")) else 32

    def sample(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
        hyperparams = base(trial, n_actions, n_envs, additional_args)
        if name.startswith("averaging"):
            hyperparams.update(convert_correction(sample_averaging(trial, max_epochs)))
        elif name.startswith("power"):
            hyperparams.update(convert_correction(sample_weighting(trial)))
        return hyperparams

    return sample


def _converter(name: str) -> Converter:
    base = _base(name)[1]

    def convert(params: dict[str, Any]) -> dict[str, Any]:
        ours = {key: value for key, value in params.items() if key in OPTIONS}
        rest = {key: value for key, value in params.items() if key not in OPTIONS}
        return {**base(rest), **convert_correction(ours)}

    return convert


def _base(name: str) -> tuple[Sampler, Converter]:
    if name.endswith("bac"):
        return sample_bac, convert_bac
    base = ALGORITHMS[name].base
    return HYPERPARAMS_SAMPLER[base], HYPERPARAMS_CONVERTER[base]


def register_search_spaces() -> None:
    """Make the search spaces known to RL Zoo."""
    for name in ALGORITHMS:
        HYPERPARAMS_SAMPLER[name] = _sampler(name)  # type: ignore[assignment]
        HYPERPARAMS_CONVERTER[name] = _converter(name)  # type: ignore[assignment]
