"""Is the gain on MountainCarContinuous the weights' or the head's? With a head that is trained but weights nothing."""

from __future__ import annotations

from sb3_avgcorr.studies.variants import Expectation, Task, VariantStudy

#: the critic of a variant without a head is trained in as many passes of its own, as fast (see ``runs.settings.variant``)
WITHOUT_HEAD = {"correction": None, "critic_epochs": 80, "critic_learning_rate": 0.0044}

HEAD_ONLY = VariantStudy(
    "head-only",
    "the weights or the head? MountainCarContinuous, paper's settings",
    "The weights or the head?",
    "MountainCarContinuous with the paper's settings for the averaging correction, whose network shares the critic's "
    "layers. *none* has no head, and its critic is trained in as many passes; *head* trains the head but does not weight "
    "(`correction_strength=0`); *averaging* does both.",
    (Task("MountainCarContinuous-v0", 60_000, paper=True),),
    {"none": WITHOUT_HEAD, "head": {"correction_strength": 0.0}, "averaging": {"correction_strength": 1.0}},
    (
        Expectation("averaging learns faster than PPO", "averaging", "better than", "none", "area"),
        Expectation("averaging ends higher than PPO", "averaging", "better than", "none", "final"),
        Expectation("the head alone learns faster than PPO", "head", "better than", "none", "area"),
        Expectation("the head alone ends higher than PPO", "head", "better than", "none", "final"),
        Expectation("averaging learns faster than the head alone", "averaging", "better than", "head", "area"),
        Expectation("averaging ends higher than the head alone", "averaging", "better than", "head", "final"),
    ),
)
