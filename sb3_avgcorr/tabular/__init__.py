"""Finite MDPs solved exactly: the ground truth the correction is measured against. Needs SciPy."""

from sb3_avgcorr.tabular.mdp import ChainClasses, FiniteMDP, Samples, random_mdp
from sb3_avgcorr.tabular.measures import error_bound_size, residual_bias, tabular_correction, total_variation
from sb3_avgcorr.tabular.torch_policy import differentiable_J, policy_probabilities, torch_gradient

__all__ = [
    "ChainClasses",
    "FiniteMDP",
    "Samples",
    "differentiable_J",
    "error_bound_size",
    "policy_probabilities",
    "random_mdp",
    "residual_bias",
    "tabular_correction",
    "torch_gradient",
    "total_variation",
]
