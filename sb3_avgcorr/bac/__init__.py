from sb3_avgcorr.bac.bac import BAC, AveragingBAC

__all__ = ["BAC", "AveragingBAC"]
