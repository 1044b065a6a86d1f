"""The errors that a user sees as one line, what they may have meant, and what they should install."""

import difflib
import re
import textwrap
from collections.abc import Iterable

#: package that may be missing -> the extra of ours that brings it
EXTRAS: dict[str, str] = {
    "Box2D": "box2d",
    "dm_control": "dm-control",
    "filelock": "experiments",
    "huggingface_sb3": "zoo",
    "matplotlib": "zoo",
    "moviepy": "zoo",
    "mujoco": "dm-control",
    "pandas": "experiments",
    "pyarrow": "experiments",
    "pygame": "zoo",
    "ray": "ray",
    "rl_zoo3": "zoo",
    "rliable": "experiments",
    "sb3_contrib": "contrib",
    "scipy": "experiments",
    "shimmy": "dm-control",
    "tensorboard": "zoo",
}

#: how alike two names must be (from 0 to 1) for one to be taken for a slip of the other
CLOSE = 0.75
#: a list of more names than this helps nobody
MANY = 40


class UserError(Exception):
    """A mistake that the user can mend; the command line shows it as one line, without a traceback."""

    exit_code = 2


class FailedRun(UserError):
    """A run that began in order and could not end so; shown as one line, too."""

    exit_code = 1


def install(extra: str) -> str:
    """
    Tell how to install an extra.

    :param extra: its name
    :return: the command
    """
    return f"pip install 'sb3-avgcorr[{extra}]'"


def one_line(error: BaseException, width: int = 500) -> str:
    """
    Say what an exception says, in one line.

    :param error: the exception
    :param width: most characters
    :return: its message; with the exception's name where the message alone would not be understood, and with the extra that
        brings a missing package
    """
    message = textwrap.shorten(str(error), width, placeholder=" …") or "it gave no reason"
    if type(error).__name__ == "DependencyNotInstalled":  # Gymnasium's word for what an environment needs
        extras = (extra for package, extra in EXTRAS.items() if package.lower() in message.lower())
        return " ".join([message.rstrip("."), *(f"({install(extra)})" for extra in list(extras)[:1])])
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename!r}: {error.strerror}"
    understood = isinstance(error, (UserError, ValueError, AssertionError, OSError, ImportError, ArithmeticError))
    return message if understood else f"{type(error).__name__}: {message}"


def user_error(error: Exception, extra: str = "") -> UserError:
    """
    Turn an exception into an error that is shown in one line. A missing package is named with the extra that brings it.

    :param error: the exception
    :param extra: the extra that brings what is missing; default: that of the package, if it is one of ours
    :return: the error to raise
    """
    if isinstance(error, UserError):
        return error
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = extra or EXTRAS.get(package, "")
    if package and extra:
        return UserError(f"This needs {package}, which is not installed: {install(extra)}")
    return UserError(one_line(error))


class Diverged(ValueError):
    """Training has left the finite numbers: the run has failed, whatever it had learned."""


def nearest(name: str, known: Iterable[str]) -> str:
    """
    End an error message about an unknown name.

    :param name: the unknown name
    :param known: the known names
    :return: a question that names the nearest known one if it is close; else the list of all if it is short
    """
    known = sorted(known)
    alike = {k: (_alike(_core(name), _core(k)), _alike(name.lower(), k.lower())) for k in known}
    closest = max(known, key=alike.__getitem__, default="")
    if closest and max(alike[closest]) >= CLOSE:
        return f"did you mean {closest!r}?"
    if len(known) > MANY:
        return f"none of the {len(known)} known names is close to it."
    return f"known are: {', '.join(known)}."


def no_environment(env_id: str, known: Iterable[str]) -> str:
    """
    Say that there is no such environment, and what would be right.

    :param env_id: the unknown id
    :param known: the known ids
    """
    near = nearest(env_id, known)
    hint = (
        "" if near.startswith("did you mean") else f" If a package of its own registers it, name that, too: package:{env_id}."
    )
    return f"There is no environment {env_id!r}; {near}{hint}"


def _core(name: str) -> str:
    """Strip an environment id of its namespace and version, which a mistyped one often lacks."""
    return re.sub(r"-v\d+$", "", name.lower().rpartition("/")[2])


def _alike(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
