from sb3_avgcorr.trpo.trpo import AveragingTRPO

__all__ = ["AveragingTRPO"]
