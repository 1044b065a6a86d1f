"""
The correction's options, each in one place: name, type, default, range, documentation and search space.

The constructor's signature, its checks, the docstrings, RL Zoo's YAML files and the Optuna search spaces read them here. A
class changes a default by an attribute of the same name: ``correction_epochs = 1``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from stable_baselines3.common.type_aliases import Schedule

from sb3_avgcorr.common.correction import CorrectionLoss

#: how Optuna draws a value: ("categorical", choices), ("int", low, high, log) or ("float", low, high, log)
Search = tuple[Any, ...]


@dataclass(frozen=True)
class Option:
    """
    What is known of an option beside its name, type and default.

    :param doc: what it means
    :param allowed: which values make sense, in words
    :param accepts: whether a value makes sense
    :param authors: whether it exists to run the authors' own schedule; else it is for every user
    :param search: how Optuna draws it; None: it is not searched
    :param schedule: whether it may be a function of the remaining progress, in YAML ``lin_0.001``
    """

    doc: str
    allowed: str
    accepts: Callable[[Any], bool]
    authors: bool = False
    search: Search | None = None
    schedule: bool = False


def _one_of(*values: Any) -> dict[str, Any]:
    words = [repr(value) for value in values]
    # 1 == True, but only one of the two is meant
    accepts = lambda value: any(value is v or (type(value) is type(v) and value == v) for v in values)  # noqa: E731
    return {"allowed": " or ".join([", ".join(words[:-1]), words[-1]]), "accepts": accepts}


def is_number(value: Any, low: float, high: float = math.inf) -> bool:
    """Tell whether a value is a finite number in [low, high], and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high and math.isfinite(value)


def is_count(value: Any, low: int) -> bool:
    """Tell whether a value is a whole number of at least ``low``, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low


def _number(low: float, high: float = math.inf, *, none: bool = False) -> dict[str, Any]:
    words = f"in [{low:g}, {high:g}]" if high < math.inf else f"a number >= {low:g}"
    return {
        "allowed": f"None or {words}" if none else words,
        "accepts": lambda value: (none and value is None) or is_number(value, low, high),
    }


def _count(low: int, *, none: bool = False) -> dict[str, Any]:
    return {
        "allowed": f"{'None or ' if none else ''}a whole number >= {low}",
        "accepts": lambda value: (none and value is None) or is_count(value, low),
    }


def _rate() -> dict[str, Any]:
    return {
        "allowed": "None, a number >= 0 or a schedule",
        "accepts": lambda value: value is None or callable(value) or is_number(value, 0.0),
        "schedule": True,
    }


def _option(default: Any, doc: str, **known: Any) -> Any:
    return dataclasses.field(default=default, metadata={"option": Option(doc, **known)})


@dataclass(kw_only=True, repr=False, eq=False)
class CorrectionOptions:
    """The correction's options and their defaults, as attributes."""

    correction: Literal["averaging", "power"] | None = _option(
        "averaging",
        """weight of a state: ``"averaging"``: ĉ(s), a regression of γ^t on the state; ``"power"``: γ^t itself;
        ``None``: 1, the algorithm as it is, to the bit""",
        **_one_of("averaging", "power", None),
    )
    correction_strength: float | Literal["auto"] = _option(
        "auto",
        """how far to correct: the weights are ``1 + k(ĉ - 1)`` with this k in [0, 1]; 1: the whole correction; 0: none, while
        it is still learned; ``"auto"``: the k of the least expected error, estimated from the rollouts; before they tell
        anything it is 0, or 1 where the policy's actor sees less than its critic""",
        allowed="'auto' or in [0, 1]",
        accepts=lambda value: value == "auto" if isinstance(value, str) else is_number(value, 0.0, 1.0),
        search=("categorical", ["auto", 0.5, 1.0]),
    )
    correction_network: Literal["shared", "separate"] = _option(
        "separate",
        """``"separate"``: two hidden layers of its own, of 32 with ReLU; ``"shared"``: a head on the critic's layers. Both
        see what the critic's layers see; a features extractor (or memory) with parameters is left to the algorithm's own
        update""",
        **_one_of("shared", "separate"),
        search=("categorical", ["shared", "separate"]),
    )
    correction_lambda: float = _option(
        0.7,
        "λ of the regression's targets: 1: γ^t, as in the paper; less: bootstrapped, with less variance",
        **_number(0.0, 1.0),
        search=("categorical", [0.7, 0.8, 0.9, 1.0]),
    )
    correction_learning_rate: float | Schedule | None = _option(
        1.6e-2,
        "learning rate of the fit, can be a function of the remaining progress; ``None``: the algorithm's",
        **_rate(),
        search=("float", 1e-4, 3e-2, True),
    )
    correction_epochs: int | None = _option(
        None,
        """passes over the rollout that fit the correction (shared: jointly with the value loss); ``None``: as many as show it
        10,240 samples, from 1 to 5""",
        **_count(0, none=True),
        search=("int", 1, 32, True),
    )
    correction_batch_size: int | None = _option(
        512,
        "minibatch size of these passes and of ``critic_epochs``; ``None``: the whole rollout",
        **_count(1, none=True),
        search=("categorical", [64, 256, 1024]),
    )
    correction_averaging: bool = _option(
        True,
        """use the average of the separate network's parameters over recent fits, instead of those of the last fit, which
        follow the few episodes of one rollout""",
        **_one_of(True, False),
        search=("categorical", [True, False]),
    )
    correction_shrinkage: bool = _option(
        True,
        """draw ĉ towards 1 as far as the correction, before it was fitted to a rollout, failed to predict it""",
        **_one_of(True, False),
        search=("categorical", [True, False]),
    )
    normalize_correction: bool | Literal["running"] = _option(
        True,
        """divide the weights by their mean over the rollout; ``"running"``: by their mean over recent rollouts, for rollouts
        that are short against an episode""",
        **_one_of(True, False, "running"),
        search=("categorical", [True, False, "running"]),
    )
    fast: bool | Literal["always"] = _option(
        True,
        """collect and update with the numpy engine where it is the same computation and faster (see docs/speed.md); ``False``:
        SB3's own loop. Where the algorithm must be SB3's to the bit (``correction=None``, ``gamma=1``) SB3's own loop is used
        anyway, unless it is ``"always"``: then the algorithm is SB3's to rounding""",
        **_one_of(True, False, "always"),
    )
    correction_loss: CorrectionLoss = _option(
        "bce",
        """``"bce"``: cross-entropy on a sigmoid output; ``"mse"``: squared error, as in the paper""",
        **_one_of("bce", "mse"),
        authors=True,
        search=("categorical", ["bce", "mse"]),
    )
    correction_scale: float = _option(
        1.0,
        """factor of γ^t under ``"mse"``""",
        allowed="a number > 0",
        accepts=lambda value: is_number(value, 0.0) and value > 0.0,
        authors=True,
        search=("int", 1, 150, False),
    )
    correction_coef: float | None = _option(
        None,
        """weight of the correction's loss beside the value loss when shared; ``None``: 1, beside a value loss scaled to a
        tenth at most, so that the size of the rewards does not matter""",
        **_number(0.0, none=True),
        authors=True,
        search=("float", 0.1, 10.0, True),
    )
    correction_order: Literal["before", "after"] = _option(
        "before",
        """``"before"``: fit on this rollout, then weight it (Algorithm 1 of the paper); ``"after"``: weight the rollout with
        the correction learned from earlier ones, update, then fit (the authors' program)""",
        **_one_of("before", "after"),
        authors=True,
        search=("categorical", ["before", "after"]),
    )
    normalize_before_weighting: bool = _option(
        False,
        """normalise the advantages over the rollout before they are weighted (as in the authors' program) in place of the
        algorithm's own normalisation of the weighted ones (``normalize_advantage``)""",
        **_one_of(True, False),
        authors=True,
        search=("categorical", [True, False]),
    )
    critic_learning_rate: float | Schedule | None = _option(
        None,
        """learning rate of the critic's parameters, can be a function of the remaining progress; ``None``:
        ``learning_rate``""",
        **_rate(),
        authors=True,
    )
    critic_epochs: int = _option(
        0,
        "passes of the value loss alone after the algorithm's update, not cut short by ``target_kl``",
        **_count(0),
        authors=True,
    )
    critic_lambda: float | None = _option(
        None,
        "λ of the critic's targets in these passes: ``None``: the algorithm's returns; 1: Monte-Carlo",
        **_number(0.0, 1.0, none=True),
        authors=True,
    )


#: every option by its name, in the order of the documentation
OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(CorrectionOptions)}


def check_options(model: Any) -> None:
    """
    Raise a ValueError that names an option of a model, its value and what would be right, if one makes no sense.

    :param model: the model
    """

    def refuse(name: str, allowed: str) -> None:
        raise ValueError(f"{name}={getattr(model, name)!r} makes no sense: it must be {allowed}.")

    if not (is_number(model.gamma, 0.0, 1.0) and model.gamma > 0.0):
        refuse("gamma", "in (0, 1]")
    for name, option in OPTIONS.items():
        if not option.accepts(getattr(model, name)):
            refuse(name, option.allowed)
    if model.correction_loss == "bce" and model.correction_scale != 1.0:
        refuse(
            "correction_scale",
            "1 with correction_loss='bce', whose output is γ^t itself; a scale goes with correction_loss='mse'",
        )


def option_parameters(cls: type) -> list[inspect.Parameter]:
    """
    List the options as keyword arguments of a class, with its own defaults.

    :param cls: a class with the options as attributes
    :return: the parameters of a signature
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    types = {field.name: field.type for field in dataclasses.fields(CorrectionOptions)}
    return [inspect.Parameter(name, kind, default=getattr(cls, name), annotation=types[name]) for name in OPTIONS]


def options_doc() -> str:
    """
    Document the options for a class docstring.

    :return: one ``:param:`` an option, those of the authors' schedule last
    """

    def lines(authors: bool) -> list[str]:
        own = ((name, option) for name, option in OPTIONS.items() if option.authors == authors)
        texts = (f":param {name}: {' '.join(option.doc.split())}" for name, option in own)
        return [textwrap.fill(text, 120, subsequent_indent="    ", break_long_words=False) for text in texts]

    return "\n".join([*lines(authors=False), *lines(authors=True)])
