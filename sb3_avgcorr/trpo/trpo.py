from typing import TypeVar

from sb3_contrib import TRPO
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_avgcorr.common.averaging import AveragingCorrection

SelfAveragingTRPO = TypeVar("SelfAveragingTRPO", bound="AveragingTRPO")


class AveragingTRPO(AveragingCorrection, TRPO):
    """
    TRPO with the averaging correction of the discount-factor mismatch. Takes every argument of sb3-contrib's TRPO, in the
    same order and with the same defaults, and the correction's as keywords. With ``correction=None`` it is sb3-contrib's
    TRPO, to the bit.

    The correction weights the surrogate objective; the KL divergence that bounds the step stays as it is, over the states as
    they were sampled.
    """

    def learn(
        self: SelfAveragingTRPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "AveragingTRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingTRPO:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
