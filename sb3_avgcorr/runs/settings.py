"""Equal and own settings: how the variants of an algorithm are trained so that they can be compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from sb3_avgcorr.common.estimator import passes
from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import settings_of
from sb3_avgcorr.zoo.algorithms import ALGORITHMS

Settings = Literal["equal", "own"]

SETTINGS: dict[str, str] = {
    "equal": "equal (all variants train with the settings of the averaging one, so that only the correction differs)",
    "own": "own (each variant trains with the settings of its own file, so that a difference may be the settings')",
}


def family_of(algo: str) -> str:
    """
    The algorithm that a variant corrects or leaves uncorrected.

    :param algo: name of the variant: ``ppo``, ``power_ppo``, ``averaging_ppo``, ...
    """
    return algo.removeprefix("averaging_").removeprefix("power_")


def variant(
    algo: str,
    env: str,
    settings: Settings = "equal",
    *,
    paper: bool = False,
    hyperparams: Mapping[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    """
    How to train a variant. Under equal settings every variant is the averaging algorithm of its family with the settings of
    that one, and only the correction differs. Where the correction's passes train the critic, too (a shared network), the
    other variants train the critic in as many passes of its own. γ^t is applied in full, as everywhere.

    :param algo: name of the variant: ``ppo``, ``power_ppo``, ``averaging_ppo``, ...
    :param env: id of the environment
    :param settings: ``"equal"`` or ``"own"``
    :param paper: the paper's settings
    :param hyperparams: hyperparameters to change for all variants
    :return: the algorithm to train, and its hyperparameters that differ from the file's
    """
    common = dict(hyperparams or {})
    if settings == "own":
        return algo, common
    bases = [name.removeprefix("averaging_") for name in ALGORITHMS if name.startswith("averaging_")]
    known = [prefix + base for base in bases for prefix in ("", "power_", "averaging_")]
    if algo not in known:
        raise UserError(
            f"{algo!r} has no averaging correction whose settings it could share (--settings equal); {nearest(algo, known)} "
            "Else take --settings own."
        )
    base = family_of(algo)
    family = f"averaging_{base}"
    if algo == family:
        return family, common
    options: dict[str, Any] = {"correction": "power" if algo.startswith("power_") else None}
    entry = settings_of(Job(family, env, 0, 1, paper=paper, hyperparams=common))
    if options["correction"] == "power" and entry.get("correction_strength", 1.0) == "auto":
        options["correction_strength"] = 1.0
    defaults = inspect.signature(ALGORITHMS[family].cls).parameters
    given = {name: entry.get(name, parameter.default) for name, parameter in defaults.items()}
    # BAC trains its critic in a step of its own when there is no correction to train it with.
    if given["correction_network"] == "shared" and base != "bac":
        epochs = given["correction_epochs"]
        epochs = passes(given["n_steps"] * entry.get("n_envs", 1)) if epochs is None else epochs
        options["critic_epochs"] = given["critic_epochs"] + epochs
        if given["vf_coef"] == 0:
            options["critic_learning_rate"] = given["correction_learning_rate"]
    return family, {**common, **options}
