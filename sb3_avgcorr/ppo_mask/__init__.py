from sb3_avgcorr.ppo_mask.ppo_mask import AveragingMaskablePPO

__all__ = ["AveragingMaskablePPO"]
