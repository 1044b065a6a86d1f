"""
Optuna search spaces: RL Zoo's space of the algorithm that is corrected, and the correction's own options.

Names given to Optuna are those of the arguments, so that a trial read back from a database (``--trial-id``) is turned into
hyperparameters by the converter alone.
"""

from collections.abc import Callable
from typing import Any

import optuna
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

from sb3_avgcorr.common.options import OPTIONS
from sb3_avgcorr.zoo.algorithms import ALGORITHMS

Sampler = Callable[[optuna.Trial, int, int, dict[str, Any]], dict[str, Any]]
Converter = Callable[[dict[str, Any]], dict[str, Any]]

#: what is searched of the correction by powers, which learns nothing
POWER = ("normalize_correction", "normalize_before_weighting")
#: what is searched of the averaging correction
AVERAGING = tuple(name for name, option in OPTIONS.items() if option.search is not None)


def sample_correction(trial: optuna.Trial, names: tuple[str, ...], max_epochs: int = 32) -> dict[str, Any]:
    """
    Draw options of the correction. Those for the squared error only (scale and coefficient, which the paper adds) are drawn in
    any case, because TPE models parameters jointly only where every trial has them.

    :param trial: Optuna's trial
    :param names: names of the options
    :param max_epochs: most passes over a rollout that are worth trying
    :return: the options as Optuna names them
    """
    sampled: dict[str, Any] = {}
    for name in names:
        kind, *space = OPTIONS[name].search or ()
        if kind == "categorical":
            sampled[name] = trial.suggest_categorical(name, *space)
        else:
            low, high, log = space
            high = min(high, max_epochs) if name == "correction_epochs" else high
            suggest = trial.suggest_int if kind == "int" else trial.suggest_float
            sampled[name] = suggest(name, low, high, log=log)
    return sampled


def convert_correction(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    Turn options into arguments.

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
    Draw hyperparameters of BAC, over ranges that hold the paper's.

    :param trial: Optuna's trial
    :return: arguments of the algorithm
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
    Turn BAC's parameters into arguments.

    :param sampled: the parameters as Optuna names them
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
            hyperparams.update(convert_correction(sample_correction(trial, AVERAGING, max_epochs)))
        elif name.startswith("power"):
            hyperparams.update(convert_correction(sample_correction(trial, POWER)))
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
