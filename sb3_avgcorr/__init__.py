"""Stable-Baselines3 algorithms that correct the discount-factor mismatch of on-policy policy gradients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sb3_avgcorr.a2c import AveragingA2C
from sb3_avgcorr.bac import BAC, AveragingBAC
from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.ppo import AveragingPPO

if TYPE_CHECKING:
    from sb3_avgcorr.ppo_mask import AveragingMaskablePPO
    from sb3_avgcorr.ppo_recurrent import AveragingRecurrentPPO
    from sb3_avgcorr.trpo import AveragingTRPO

__version__ = "0.1.0"

__all__ = [
    "BAC",
    "AveragingA2C",
    "AveragingBAC",
    "AveragingCorrection",
    "AveragingMaskablePPO",
    "AveragingPPO",
    "AveragingRecurrentPPO",
    "AveragingTRPO",
    "__version__",
]

register_envs()

# Loaded when asked for: they stand on sb3-contrib, which the bare install does not need.
_ON_CONTRIB = {
    "AveragingMaskablePPO": "sb3_avgcorr.ppo_mask",
    "AveragingRecurrentPPO": "sb3_avgcorr.ppo_recurrent",
    "AveragingTRPO": "sb3_avgcorr.trpo",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_CONTRIB:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_ON_CONTRIB[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "sb3_contrib":
            raise
        raise ImportError(f'{name} needs sb3-contrib: pip install "sb3-avgcorr[contrib]"') from error
