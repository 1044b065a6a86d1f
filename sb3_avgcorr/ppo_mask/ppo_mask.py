from typing import Any, TypeVar

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.common.rollout import rollout_rows

SelfAveragingMaskablePPO = TypeVar("SelfAveragingMaskablePPO", bound="AveragingMaskablePPO")


class AveragingMaskablePPO(AveragingCorrection, MaskablePPO):  # type: ignore[misc]  # collect_rollouts takes any rest
    """
    PPO with invalid action masking and the averaging correction of the discount-factor mismatch. Takes every argument of
    sb3-contrib's MaskablePPO, in the same order and with the same defaults, and the correction's as keywords. With
    ``correction=None`` it is sb3-contrib's MaskablePPO, to the bit.

    The correction is a function of the state; masks do not enter it.
    """

    def _log_prob(self, rows: np.ndarray) -> th.Tensor:
        buffer: Any = self.rollout_buffer
        obs, actions = rollout_rows(buffer, self.action_space, rows)
        masks = buffer.action_masks.reshape(-1, buffer.mask_dims)[rows]
        return self.policy.evaluate_actions(obs, actions, action_masks=masks)[1]

    def learn(  # type: ignore[override]  # use_masking before progress_bar, as in MaskablePPO
        self: SelfAveragingMaskablePPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "AveragingMaskablePPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingMaskablePPO:
        return super().learn(
            total_timesteps,
            callback,
            log_interval,
            tb_log_name,
            reset_num_timesteps,
            use_masking=use_masking,
            progress_bar=progress_bar,
        )
