"""How a corrected algorithm presents itself: its class, its signature, its docstring, its hyperparameters' ranges."""

from __future__ import annotations

import inspect
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_avgcorr.common.critic import CriticLearningRate

if TYPE_CHECKING:
    from sb3_avgcorr.common.averaging import AveragingCorrection


def check_hyperparameters(model: AveragingCorrection) -> None:
    """
    Raise a ValueError that names the argument, its value and what would be right.

    :param model: the model whose hyperparameters to check
    """

    def require(name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name}={getattr(model, name)!r} makes no sense: it must be {allowed}.")

    def is_number(value: Any, low: float, high: float = math.inf) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high and math.isfinite(value)

    def is_count(value: Any, low: int) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low

    m = model
    require("gamma", is_number(m.gamma, 0.0, 1.0) and m.gamma > 0.0, "in (0, 1]")
    require("correction", m.correction in ("averaging", "power", None), "'averaging', 'power' or None")
    require("correction_network", m.correction_network in ("shared", "separate"), "'shared' or 'separate'")
    require("correction_loss", m.correction_loss in ("bce", "mse"), "'bce' or 'mse'")
    require("correction_order", m.correction_order in ("before", "after"), "'before' or 'after'")
    require("correction_scale", is_number(m.correction_scale, 0.0) and m.correction_scale > 0.0, "a number > 0")
    require(
        "correction_scale",
        m.correction_loss == "mse" or m.correction_scale == 1.0,
        "1 with correction_loss='bce', whose output is γ^t itself; a scale goes with correction_loss='mse'",
    )
    require("correction_lambda", is_number(m.correction_lambda, 0.0, 1.0), "in [0, 1]")
    require("critic_lambda", m.critic_lambda is None or is_number(m.critic_lambda, 0.0, 1.0), "None or in [0, 1]")
    require("correction_coef", m.correction_coef is None or is_number(m.correction_coef, 0.0), "None or a number >= 0")
    for name in ("correction_learning_rate", "critic_learning_rate"):
        rate = getattr(m, name)
        require(name, rate is None or callable(rate) or is_number(rate, 0.0), "None, a number >= 0 or a schedule")
    require("correction_epochs", is_count(m.correction_epochs, 0), "a whole number >= 0")
    require("critic_epochs", is_count(m.critic_epochs, 0), "a whole number >= 0")
    require(
        "correction_batch_size",
        m.correction_batch_size is None or is_count(m.correction_batch_size, 1),
        "None or a whole number >= 1",
    )
    for name in ("correction_averaging", "correction_shrinkage", "normalize_before_weighting"):
        require(name, getattr(m, name) in (True, False), "True or False")
    require("fast", m.fast in (True, False, "always"), "True, False or 'always'")
    require("normalize_correction", m.normalize_correction in (True, False, "running"), "True, False or 'running'")


def corrected_algorithm(cls: type[AveragingCorrection], mixin: type[AveragingCorrection]) -> type[OnPolicyAlgorithm]:
    """
    :param cls: a class made with the mixin
    :param mixin: :class:`AveragingCorrection`
    :return: the algorithm that it corrects: the first on-policy one behind the mixin
    """
    behind = [base for base in cls.__mro__[cls.__mro__.index(mixin) + 1 :] if base not in mixin.__mro__]
    after = [base for base in behind if issubclass(base, OnPolicyAlgorithm)]
    before = cls.__mro__[: cls.__mro__.index(mixin)]
    if issubclass(cls, OffPolicyAlgorithm):
        raise TypeError(
            f"{cls.__name__} cannot be corrected: it is off-policy, and the correction belongs to on-policy rollouts."
        )
    late = [base.__name__ for base in before if "train" in base.__dict__ and not issubclass(base, mixin)]
    if late:
        raise TypeError(f"Put AveragingCorrection before {late[0]} in the bases of {cls.__name__}, or it corrects nothing.")
    if not after:
        raise TypeError(
            f"{cls.__name__} has nothing to correct: write class {cls.__name__}(AveragingCorrection, Algorithm), where "
            "Algorithm is a subclass of SB3's OnPolicyAlgorithm whose train() takes its advantages from self.rollout_buffer."
        )
    algorithm = cast(type[OnPolicyAlgorithm], after[0])
    taken = keyword_only(mixin) & inspect.signature(algorithm).parameters.keys()
    if issubclass(algorithm, CriticLearningRate):
        taken.discard("critic_learning_rate")  # it knows the mixin's
    if taken:
        raise TypeError(
            f"{algorithm.__name__} cannot be corrected: it has arguments that the correction has, too "
            f"({', '.join(sorted(taken))}), and each would be given to one of them only. Rename them in {algorithm.__name__}."
        )
    return algorithm


def keyword_only(cls: type) -> set[str]:
    """
    :param cls: a class
    :return: names of the keyword-only arguments of its own ``__init__``
    """
    parameters = inspect.signature(cls.__dict__["__init__"]).parameters
    return {name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def updates_as_sb3(cls: type[AveragingCorrection], mixin: type[AveragingCorrection]) -> bool:
    """
    :param cls: a class made with the mixin
    :param mixin: :class:`AveragingCorrection`
    :return: whether the update behind the mixin is one of SB3's or sb3-contrib's, whose calls are known
    """
    behind = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    update = next(base.__dict__["train"] for base in behind if "train" in base.__dict__)
    return str(update.__module__).split(".")[0] in ("stable_baselines3", "sb3_contrib")


def joint_signature(
    cls: type[AveragingCorrection], mixin: type[AveragingCorrection], algorithm: type[OnPolicyAlgorithm]
) -> inspect.Signature:
    """
    What ``cls(...)`` takes: every argument of the algorithm, in its order, then the correction's as keywords.

    :param cls: a class made with the mixin
    :param mixin: :class:`AveragingCorrection`
    :param algorithm: the algorithm it corrects
    :return: its signature
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = dict(inspect.signature(algorithm).parameters)
    # from the mixin to the class itself: a class may change a default by naming the argument in its own __init__
    for base in reversed(cls.__mro__[: cls.__mro__.index(mixin) + 1]):
        if "__init__" in base.__dict__:
            own = inspect.signature(base.__dict__["__init__"]).parameters
            parameters.update({name: own[name] for name in own if name in keyword_only(base)})
    ordered = sorted((p for p in parameters.values() if p.kind not in variadic), key=lambda p: p.kind)
    return inspect.Signature(ordered)


def documented_parameters(cls: type) -> str:
    """
    :param cls: a class
    :return: the ``:param:`` part of its docstring
    """
    doc = inspect.cleandoc(cls.__doc__ or "")
    return doc[doc.find(":param") :] if ":param" in doc else ""
