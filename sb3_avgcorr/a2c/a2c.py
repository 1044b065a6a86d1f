from typing import TypeVar

from stable_baselines3 import A2C
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_avgcorr.common.averaging import AveragingCorrection

SelfAveragingA2C = TypeVar("SelfAveragingA2C", bound="AveragingA2C")


class AveragingA2C(AveragingCorrection, A2C):
    """
    A2C with the averaging correction of the discount-factor mismatch. Takes every argument of SB3's A2C, in the same order
    and with the same defaults, and the correction's as keywords. With ``correction=None`` it is SB3's A2C, to the bit.

    A2C's rollouts are short and its updates many, so by default the correction is fitted with one pass a rollout at a rate of
    8e-3, and its weights are divided by their mean over recent rollouts: the mean over a few steps in a row would take away
    what they say.
    """

    correction_epochs = 1
    correction_learning_rate = 8e-3
    normalize_correction = "running"

    def learn(
        self: SelfAveragingA2C,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "AveragingA2C",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingA2C:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
