"""Does a task suffer from the discount-factor mismatch?"""

from sb3_avgcorr.diagnostics.analysis import diagnose
from sb3_avgcorr.diagnostics.callback import CorrectionDiagnosticsCallback
from sb3_avgcorr.diagnostics.estimates import Estimate
from sb3_avgcorr.diagnostics.report import DiagnosisReport

__all__ = ["CorrectionDiagnosticsCallback", "DiagnosisReport", "Estimate", "diagnose"]
