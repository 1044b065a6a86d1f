from typing import TypeVar

from stable_baselines3 import PPO
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_avgcorr.common.averaging import AveragingCorrection

SelfAveragingPPO = TypeVar("SelfAveragingPPO", bound="AveragingPPO")


class AveragingPPO(AveragingCorrection, PPO):
    """
    PPO with the averaging correction of the discount-factor mismatch. Takes every argument of SB3's PPO, in the same order
    and with the same defaults, and the correction's as keywords. With ``correction=None`` it is SB3's PPO, to the bit.
    """

    def learn(
        self: SelfAveragingPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "AveragingPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingPPO:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
