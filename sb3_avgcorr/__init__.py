from sb3_avgcorr.a2c import AveragingA2C
from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.ppo import AveragingPPO

__all__ = ["AveragingA2C", "AveragingCorrection", "AveragingPPO"]
