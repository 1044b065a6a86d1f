"""Our algorithms under their RL Zoo names."""

from dataclasses import dataclass
from typing import Any, Literal

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_avgcorr.a2c import AveragingA2C
from sb3_avgcorr.bac import BAC, AveragingBAC
from sb3_avgcorr.ppo import AveragingPPO
from sb3_avgcorr.ppo_recurrent import AveragingRecurrentPPO
from sb3_avgcorr.trpo import AveragingTRPO
from sb3_avgcorr.zoo.masks import ZooMaskablePPO

Correction = Literal["averaging", "power"] | None


class UncorrectedPPO(AveragingPPO):
    """SB3's PPO, to the bit, which also knows the authors' schedule of the critic (``critic_epochs`` and its relatives)."""

    def __init__(self, *args: Any, correction: Correction = None, **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


class UncorrectedBAC(AveragingBAC):
    """BAC, to the bit, which also knows the fast path (``fast="always"``)."""

    def __init__(self, *args: Any, correction: Correction = None, **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


class PowerPPO(AveragingPPO):
    """PPO whose states are weighted by γ^t itself, in full."""

    correction_strength = 1.0

    def __init__(self, *args: Any, correction: Correction = "power", **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


class PowerA2C(AveragingA2C):
    """A2C whose states are weighted by γ^t itself, in full."""

    correction_strength = 1.0

    def __init__(self, *args: Any, correction: Correction = "power", **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


class PowerBAC(AveragingBAC):
    """Batch actor-critic whose states are weighted by γ^t itself, in full."""

    correction_strength = 1.0

    def __init__(self, *args: Any, correction: Correction = "power", **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


class PowerTRPO(AveragingTRPO):
    """TRPO whose states are weighted by γ^t itself, in full."""

    correction_strength = 1.0

    def __init__(self, *args: Any, correction: Correction = "power", **kwargs: Any) -> None:
        super().__init__(*args, correction=correction, **kwargs)


@dataclass(frozen=True)
class ZooAlgorithm:
    """
    An algorithm of ours under RL Zoo.

    :param cls: the class
    :param base: RL Zoo's name of the algorithm it corrects, whose tuned settings and search space it builds on
    """

    cls: type[OnPolicyAlgorithm]
    base: str


ALGORITHMS: dict[str, ZooAlgorithm] = {
    "averaging_ppo": ZooAlgorithm(AveragingPPO, "ppo"),
    "power_ppo": ZooAlgorithm(PowerPPO, "ppo"),
    "averaging_a2c": ZooAlgorithm(AveragingA2C, "a2c"),
    "power_a2c": ZooAlgorithm(PowerA2C, "a2c"),
    "bac": ZooAlgorithm(BAC, "a2c"),
    "averaging_bac": ZooAlgorithm(AveragingBAC, "a2c"),
    "power_bac": ZooAlgorithm(PowerBAC, "a2c"),
    "averaging_trpo": ZooAlgorithm(AveragingTRPO, "trpo"),
    "power_trpo": ZooAlgorithm(PowerTRPO, "trpo"),
    "averaging_ppo_mask": ZooAlgorithm(ZooMaskablePPO, "ppo"),
    "averaging_ppo_lstm": ZooAlgorithm(AveragingRecurrentPPO, "ppo_lstm"),
}
