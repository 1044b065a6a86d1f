from sb3_avgcorr.a2c.a2c import AveragingA2C

__all__ = ["AveragingA2C"]
