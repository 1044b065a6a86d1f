"""Where hyperparameters come from, and whether they make sense. Imports nothing of RL Zoo."""

import inspect
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

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


def make_folder(path: Path, argument: str) -> None:
    """
    :param path: a folder to be made, if it is not there
    :param argument: the argument that named it, for the error if it cannot be
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(path)!r} ({argument}) cannot be a folder: {error.strerror}.") from error


def hyperparams_folder() -> Path:
    """
    :return: our YAML files: inside the package when installed from a wheel, beside it in a checkout
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "hyperparams", package.parent / "hyperparams"):
        if (folder / "paper").is_dir():
            return folder
    raise UserError(f"The hyperparameter files are missing from the installation: neither in {package} nor beside it.")


def read_yaml(path: Path) -> dict[str, dict[str, Any]]:
    """
    :param path: a file of hyperparameters
    :return: its entries by environment id
    """
    import yaml  # comes with RL Zoo, not with SB3

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The hyperparameter file {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f"{path} must hold a mapping from environment ids to mappings of hyperparameters.")
    return entries


def paper_config(algo: str) -> Path:
    """
    :param algo: name of an algorithm
    :return: the file with the paper's settings for it
    """
    folder = hyperparams_folder() / "paper"
    path = folder / f"{algo}.yml"
    if not path.is_file():
        with_paper = ", ".join(sorted(p.stem for p in folder.glob("*.yml")))
        raise UserError(f"The paper has no settings for {algo!r} (--paper); it has for: {with_paper}.")
    return path


def check_entry(algo: str, cls: type[BaseAlgorithm], entry: dict[str, Any]) -> None:
    """
    Raise a UserError for a hyperparameter that neither RL Zoo nor the algorithm knows.

    :param algo: name of the algorithm
    :param cls: its class
    :param entry: the hyperparameters
    """
    parameters = inspect.signature(cls).parameters
    own = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = (own | ZOO_KEYS) - GIVEN_BY_ZOO.keys() - {"_init_setup_model"}
    for name in entry:
        if name in GIVEN_BY_ZOO:
            raise UserError(f"{name!r} is not a hyperparameter here; use {GIVEN_BY_ZOO[name]}.")
        if name not in known:
            raise UserError(f"{algo} has no hyperparameter {name!r}; {nearest(str(name), known)}")
    for name in ("policy", "n_timesteps"):
        if name not in entry:
            raise UserError(f"The hyperparameters for {algo} lack {name!r}.")
