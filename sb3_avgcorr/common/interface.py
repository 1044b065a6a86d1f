"""How a corrected algorithm presents itself: its class, its signature and its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_avgcorr.common.critic import CriticLearningRate
from sb3_avgcorr.common.options import OPTIONS, option_parameters
from sb3_avgcorr.errors import nearest

if TYPE_CHECKING:
    from sb3_avgcorr.common.averaging import AveragingCorrection


def corrected_algorithm(cls: type[AveragingCorrection], mixin: type[AveragingCorrection]) -> type[OnPolicyAlgorithm]:
    """
    Find the algorithm that a class corrects, and refuse a class that corrects nothing.

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
    taken = OPTIONS.keys() & inspect.signature(algorithm).parameters.keys()
    if issubclass(algorithm, CriticLearningRate):
        taken.discard("critic_learning_rate")  # it knows the mixin's
    if taken:
        raise TypeError(
            f"{algorithm.__name__} cannot be corrected: it has arguments that the correction has, too "
            f"({', '.join(sorted(taken))}), and each would be given to one of them only. Rename them in {algorithm.__name__}."
        )
    return algorithm


def check_names(cls: type[AveragingCorrection], algorithm: type[OnPolicyAlgorithm], names: Iterable[str]) -> None:
    """
    Raise a TypeError for an argument that neither the algorithm nor the correction has; it names the nearest that there is.

    :param cls: a class made with the mixin
    :param algorithm: the algorithm that it corrects
    :param names: keywords that are not the correction's
    """
    known = inspect.signature(algorithm).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in names:
        if name not in known:
            hint = nearest(name, [*known, *OPTIONS])
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}; {hint}")


def keyword_only(cls: type) -> set[str]:
    """
    List the keyword-only arguments of a class's own ``__init__``.

    :param cls: a class
    :return: names of the keyword-only arguments of its own ``__init__``
    """
    parameters = inspect.signature(cls.__dict__["__init__"]).parameters
    return {name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


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
    parameters.update({parameter.name: parameter for parameter in option_parameters(cls)})
    # a class may also change a default by naming the argument in its own __init__
    for base in reversed(cls.__mro__[: cls.__mro__.index(mixin)]):
        if "__init__" in base.__dict__:
            own = inspect.signature(base.__dict__["__init__"]).parameters
            parameters.update({name: own[name] for name in own if name in keyword_only(base)})
    ordered = sorted((p for p in parameters.values() if p.kind not in variadic), key=lambda p: p.kind)
    return inspect.Signature(ordered)


def documented_parameters(cls: type) -> str:
    """
    Take the ``:param:`` part out of a class docstring.

    :param cls: a class
    :return: the ``:param:`` part of its docstring
    """
    doc = inspect.cleandoc(cls.__doc__ or "")
    return doc[doc.find(":param") :] if ":param" in doc else ""
