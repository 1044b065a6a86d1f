from sb3_avgcorr.ppo.ppo import AveragingPPO

__all__ = ["AveragingPPO"]
