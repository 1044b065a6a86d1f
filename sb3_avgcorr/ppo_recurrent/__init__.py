from sb3_avgcorr.ppo_recurrent.ppo_recurrent import AveragingRecurrentPPO

__all__ = ["AveragingRecurrentPPO"]
