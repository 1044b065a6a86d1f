"""Stable-Baselines3 algorithms that correct the discount-factor mismatch of on-policy policy gradients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sb3_avgcorr.envs import register_envs

if TYPE_CHECKING:
    from sb3_avgcorr.a2c import AveragingA2C
    from sb3_avgcorr.bac import BAC, AveragingBAC
    from sb3_avgcorr.common.averaging import AveragingCorrection
    from sb3_avgcorr.common.policies import AsymmetricActorCriticPolicy
    from sb3_avgcorr.diagnostics import CorrectionDiagnosticsCallback, diagnose
    from sb3_avgcorr.ppo import AveragingPPO
    from sb3_avgcorr.ppo_mask import AveragingMaskablePPO
    from sb3_avgcorr.ppo_recurrent import AveragingRecurrentPPO
    from sb3_avgcorr.trpo import AveragingTRPO

    # at run time it is computed, see below
    __all__ = [
        "BAC",
        "AsymmetricActorCriticPolicy",
        "AveragingA2C",
        "AveragingBAC",
        "AveragingCorrection",
        "AveragingMaskablePPO",
        "AveragingPPO",
        "AveragingRecurrentPPO",
        "AveragingTRPO",
        "CorrectionDiagnosticsCallback",
        "__version__",
        "diagnose",
    ]

__version__ = "0.1.0"

register_envs()

# Loaded when asked for: torch takes seconds, and some stand on packages that the bare install does not have.
_LAZY = {
    "AsymmetricActorCriticPolicy": ("sb3_avgcorr.common.policies", "contrib"),
    "AveragingA2C": ("sb3_avgcorr.a2c", ""),
    "AveragingBAC": ("sb3_avgcorr.bac", ""),
    "AveragingCorrection": ("sb3_avgcorr.common.averaging", ""),
    "AveragingMaskablePPO": ("sb3_avgcorr.ppo_mask", "contrib"),
    "AveragingPPO": ("sb3_avgcorr.ppo", ""),
    "AveragingRecurrentPPO": ("sb3_avgcorr.ppo_recurrent", "contrib"),
    "AveragingTRPO": ("sb3_avgcorr.trpo", "contrib"),
    "BAC": ("sb3_avgcorr.bac", ""),
    "CorrectionDiagnosticsCallback": ("sb3_avgcorr.diagnostics", "experiments"),
    "diagnose": ("sb3_avgcorr.diagnostics", "experiments"),
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        # computed when asked for: ``from sb3_avgcorr import *`` gives what the installed extras allow
        return sorted(["__version__", *filter(_available, _LAZY)])
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("sb3_avgcorr"):
            raise
        raise ImportError(f'{name} needs {error.name}: pip install "sb3-avgcorr[{extra}]"') from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


def _available(name: str) -> bool:
    try:
        __getattr__(name)
    except ImportError:
        return False
    return True
