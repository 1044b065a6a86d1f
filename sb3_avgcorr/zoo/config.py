"""Where hyperparameters come from, and whether they make sense. Imports nothing of RL Zoo."""

import inspect
import math
import re
from pathlib import Path
from typing import Any, get_args

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_avgcorr.common.options import OPTIONS, is_count, is_number
from sb3_avgcorr.errors import UserError, nearest

#: keys of an entry that RL Zoo takes for itself
ZOO_KEYS = frozenset(
    {"callback", "env_kwargs", "env_wrapper", "frame_stack", "monitor_kwargs", "n_envs", "n_timesteps", "normalize", "policy"}
    | {"policy_kwargs", "vec_env_wrapper"}
)
#: arguments of an algorithm that RL Zoo gives itself, from its command line
GIVEN_BY_ZOO = {
    "env": "--env",
    "seed": "--seed",
    "device": "--device",
    "verbose": "--verbose",
    "tensorboard_log": "--tensorboard-log",
}

#: hyperparameters that RL Zoo lets be ``lin_0.001``, and ours
SCHEDULES = frozenset({"learning_rate", "clip_range", "clip_range_vf"} | {name for name in OPTIONS if OPTIONS[name].schedule})
#: hyperparameters of which there must be one at least
COUNTS = frozenset({"batch_size", "n_critic_updates", "n_envs", "n_epochs", "n_steps", "stats_window_size"})


def make_folder(path: Path, argument: str) -> None:
    """
    Make a folder, if it is not there.

    :param path: the folder
    :param argument: the argument that named it, for the error if it cannot be made
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(path)!r} ({argument}) cannot be a folder: {error.strerror}.") from error


def hyperparams_folder() -> Path:
    """
    Find our YAML files.

    :return: their folder: inside the package when installed from a wheel, beside it in a checkout
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "hyperparams", package.parent / "hyperparams"):
        if (folder / "paper").is_dir():
            return folder
    raise UserError(f"The hyperparameter files are missing from the installation: neither in {package} nor beside it.")


def read_yaml(path: Path) -> dict[str, dict[str, Any]]:
    """
    Read a file of hyperparameters.

    :param path: the file
    :return: its entries by environment id
    """
    import yaml  # comes with RL Zoo, not with SB3

    try:
        # the one in C, where there is one: experiments read an entry for each of hundreds of runs
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise UserError(f"The hyperparameter file {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f"{path} must hold a mapping from environment ids to mappings of hyperparameters.")
    return entries


def own_file(algo: str) -> Path:
    """
    Find our own settings for an algorithm.

    :param algo: name of the algorithm
    :return: the file; that of ``averaging_x`` for ``power_x``, so that only the correction differs
    """
    return hyperparams_folder() / f"{re.sub('^power_', 'averaging_', algo)}.yml"


def paper_config(algo: str) -> Path:
    """
    Find the paper's settings for an algorithm.

    :param algo: name of the algorithm
    :return: the file
    """
    folder = hyperparams_folder() / "paper"
    path = folder / f"{algo}.yml"
    if not path.is_file():
        with_paper = ", ".join(sorted(p.stem for p in folder.glob("*.yml")))
        raise UserError(f"The paper has no settings for {algo!r} (--paper); it has for: {with_paper}.")
    return path


def check_entry(algo: str, cls: type[BaseAlgorithm], entry: dict[str, Any]) -> None:
    """
    Raise a UserError for a hyperparameter that neither RL Zoo nor the algorithm knows, or whose value is of the wrong kind.

    :param algo: name of the algorithm
    :param cls: its class
    :param entry: the hyperparameters
    """
    parameters = inspect.signature(cls).parameters
    own = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = (own | ZOO_KEYS) - GIVEN_BY_ZOO.keys() - {"_init_setup_model"}
    for name, value in entry.items():
        if name in GIVEN_BY_ZOO:
            raise UserError(f"{name!r} is not a hyperparameter here; use {GIVEN_BY_ZOO[name]}.")
        if name not in known:
            raise UserError(f"{algo} has no hyperparameter {name!r}; {nearest(str(name), known)}")
        wanted = _wanted(name, value, parameters[name].annotation if name in own else None)
        if wanted:
            raise UserError(f"{name}={value!r} makes no sense: it must be {wanted}.")
    for name in ("policy", "n_timesteps"):
        if name not in entry:
            raise UserError(f"The hyperparameters for {algo} lack {name!r}; add it to their entry in the file.")


def _wanted(name: str, value: Any, annotation: Any) -> str:
    """Say of what kind a value must be; nothing if it is, or if the algorithm checks it itself."""
    if name == "n_timesteps":
        return "" if is_number(value, 1.0) else "a number >= 1 (1e6 without a dot is text in YAML; write 1.0e+6)"
    if name in COUNTS and value is not None:
        return "" if is_count(value, 1) else "a whole number >= 1"
    if name in SCHEDULES and isinstance(value, str):
        linear = re.fullmatch(r"lin_(.+)", value)
        return "" if linear and _is_float(linear[1]) else "a number, or lin_ and a number (lin_0.001)"
    if name in OPTIONS:
        return ""
    kinds = set(get_args(annotation)) or {annotation}
    if not kinds <= {int, float, bool, type(None)}:
        return ""
    if value is None:
        return "" if type(None) in kinds else "given, or left out"
    if kinds & {bool}:
        return "" if isinstance(value, bool) else "True or False"
    if kinds & {float}:
        return "" if is_number(value, -math.inf) or value in (math.inf, -math.inf) else "a number"
    return "" if is_count(value, -1) else "a whole number"


def _is_float(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
