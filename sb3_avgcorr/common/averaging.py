"""The mixin that puts the correction between the rollout and the algorithm's own ``train()``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import FloatSchedule, explained_variance

from sb3_avgcorr.common.actor import NoGradient, block_gradients, gradients_are_due
from sb3_avgcorr.common.clock import EpisodeClock
from sb3_avgcorr.common.clocked import ClockedRollouts
from sb3_avgcorr.common.correction import effective_sample_size
from sb3_avgcorr.common.critic import CriticFit, CriticLayers, check_critic
from sb3_avgcorr.common.estimator import CorrectionEstimator, PowerWeights
from sb3_avgcorr.common.gradients import blocks, independent_blocks
from sb3_avgcorr.common.interface import check_names, corrected_algorithm, documented_parameters, joint_signature
from sb3_avgcorr.common.options import OPTIONS, CorrectionOptions, check_options, options_doc
from sb3_avgcorr.common.rollout import Rollout, check_policy, rollout_rows, take_rows
from sb3_avgcorr.common.strength import Strength
from sb3_avgcorr.fast import engine_for


class AveragingCorrection(ClockedRollouts, CorrectionOptions):
    r"""
    Corrects the discount-factor mismatch of an on-policy algorithm. Put it before the algorithm's class::

        class AveragingPPO(AveragingCorrection, PPO): ...

    For losses that are linear in the advantage, or PPO's clipped one, a state's weight w ≥ 0 can be multiplied into the
    advantage: w·min(rA, clip(r)A) = min(r·wA, clip(r)·wA). So the whole correction is a step between "rollout collected"
    and the algorithm's own ``train()``, and works for every algorithm that takes its advantages from the rollout buffer.
    A class of its own may change a default by an attribute (``correction_epochs = 1``).
    """

    rollout_buffer: RolloutBuffer
    #: learns ĉ(s); None where there is nothing to learn (``correction`` is not ``"averaging"``, or γ is 1)
    correction_estimator: CorrectionEstimator | None
    #: weights of the last rollout, shape (n_steps, n_envs); None before the first
    correction_weights: np.ndarray | None
    #: k, how far the last rollout was corrected; None before the first
    correction_strength_used: float | None
    _critic_layers: CriticLayers | None
    _critic_fit: CriticFit | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        algorithm = corrected_algorithm(cls, AveragingCorrection)
        cls.__signature__ = joint_signature(cls, AveragingCorrection, algorithm)  # type: ignore[attr-defined]
        own = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = "\n".join((own, "", documented_parameters(algorithm), options_doc()))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in OPTIONS:
            setattr(self, name, kwargs.pop(name, getattr(type(self), name)))
        check_names(type(self), corrected_algorithm(type(self), AveragingCorrection), kwargs)
        self.correction_weights = None
        self.correction_strength_used = None
        self.correction_estimator = None
        # t of the observation that the next rollout begins with, as SB3's _last_episode_starts
        self._last_episode_steps: np.ndarray | None = None
        self._rollouts = 0
        super().__init__(*args, **kwargs)

    # Set-up

    @property
    def corrects(self) -> bool:
        """Whether there is anything to correct: not with ``correction=None``, and not without discounting."""
        return self.correction is not None and self.gamma < 1.0

    @property
    def _averages(self) -> bool:
        return self.correction == "averaging" and self.corrects

    def _setup_model(self) -> None:
        check_options(self)
        super()._setup_model()
        if not isinstance(self.rollout_buffer, RolloutBuffer):
            raise TypeError(
                f"{type(self).__name__} cannot be corrected: its rollout_buffer is a {type(self.rollout_buffer).__name__}, "
                "not a RolloutBuffer of SB3, whose advantages the correction changes."
            )
        self._clock = EpisodeClock(self.n_envs)
        if self._last_episode_steps is not None and len(self._last_episode_steps) == self.n_envs:
            self._clock.next_steps = self._last_episode_steps.copy()
        if not hasattr(self, "_correction_rng"):
            # as SB3's, reproducible for a user who seeds torch; nothing is drawn from its stream
            self._correction_rng = np.random.default_rng(th.initial_seed() if self.seed is None else self.seed)
        self._set_up_parts()
        self._power = PowerWeights(self, self.gamma)
        # an actor that cannot tell states apart which want different actions is where the mismatch changes what is learned
        self._strength = Strength(before=float(getattr(self.policy, "actor_sees_less", False)))
        self._restore()
        self._set_up_engine()

    @property
    def _correction_lr_schedule(self) -> FloatSchedule:
        """Learning rate of the correction, as the option says now."""
        rate = self.correction_learning_rate
        return FloatSchedule(self.lr_schedule if rate is None else rate)

    def _reads_critic(self) -> bool:
        """Whether anything but the algorithm's own update trains the critic's layers."""
        return self.critic_epochs > 0 or (self._averages and self.correction_network == "shared")

    def _plan_of_parts(self) -> tuple[Any, ...]:
        """What the estimator and the critic's fit are made from; where that is another, they must be made anew."""
        critic = self.policy.parameters() if self._reads_critic() else ()
        options = self.correction_network, self.correction_loss, self.correction_scale, self.correction_averaging
        return (self._averages, options, self.critic_epochs > 0, *((id(p), p.requires_grad) for p in critic))

    def _set_up_parts(self) -> None:
        """Make what learns the correction and what fits the critic, where they are needed."""
        if self._averages or self.critic_epochs > 0:
            check_critic(self.policy, self._critic_features)
        self._critic_layers = CriticLayers(self.policy) if self._reads_critic() else None
        self._critic_fit = None
        if self._critic_layers is not None and self.critic_epochs > 0:
            self._critic_fit = CriticFit(self._critic_layers)
        self.correction_estimator = self._make_estimator() if self._averages else None
        self._made_from = self._plan_of_parts()

    def _set_up_engine(self) -> None:
        """Make what serves the model in less time, if the options ask for it and it can."""
        self._wanted_fast = self.fast, self.corrects
        self._engine = self._make_engine()

    def _make_engine(self) -> Any:
        if not (self.fast == "always" or (self.fast and self.corrects)):
            return None
        engine = engine_for(self, corrected_algorithm(type(self), AveragingCorrection))
        if engine is not None and self.correction_estimator is not None and self.correction_network == "separate":
            engine.serve(self.correction_estimator)
        return engine

    def _follow_options(self) -> None:
        """Check the options, which the user may have changed since the last rollout, and make what they ask for."""
        check_options(self)
        self._group_critic()
        self._power.gamma = self.gamma
        made_anew = self._plan_of_parts() != self._made_from
        if made_anew:
            self._set_up_parts()
        if made_anew or (self.fast, self.corrects) != self._wanted_fast:
            self._set_up_engine()
        if self.correction_estimator is not None:
            self.correction_estimator.gamma = self.gamma

    def _make_estimator(self) -> CorrectionEstimator:
        policy, shared = self.policy, self.correction_network == "shared"
        return CorrectionEstimator(
            self,
            policy.mlp_extractor.latent_dim_vf if shared else getattr(policy, "lstm_output_dim", policy.features_dim),
            self.gamma,
            rollout_size=self.n_steps * self.n_envs,
            critic=self._critic_layers if shared else None,
            device=self.device,
            rng=self._correction_rng,
        )

    def set_random_seed(self, seed: int | None = None) -> None:
        super().set_random_seed(seed)
        if seed is not None:
            self._correction_rng = np.random.default_rng(seed)
            if self.correction_estimator is not None:
                self.correction_estimator.rng = self._correction_rng

    # Update

    def train(self) -> None:
        """Weight the advantages of the rollout, and let the algorithm update the policy with them."""
        buffer = self.rollout_buffer
        self._follow_options()
        self._check_rollout()
        self._rollouts += 1
        estimator = self.correction_estimator
        rollout = self._rollout() if estimator is not None or self._critic_fit is not None else None
        if self.corrects:
            weights = self._weights(rollout)
            self.correction_weights = weights
        else:
            weights = None
            self.correction_weights = np.ones(buffer.rewards.shape, dtype=np.float32)
        if self.normalize_before_weighting and buffer.advantages.size > 1:
            buffer.advantages = (buffer.advantages - buffer.advantages.mean()) / (buffer.advantages.std() + 1e-8)
        if weights is not None:
            buffer.advantages = buffer.advantages * weights

        with self._around_update():
            if self._engine is not None and self._engine.trains():
                self._engine.train()
            else:
                try:
                    super().train()
                except ValueError:  # so says torch of a distribution with wrong parameters
                    check_policy(self, self._last_values())
                    raise
        check_policy(self)

        if rollout is not None:
            self.policy.set_training_mode(False)
            if estimator is not None and self.correction_order == "after":
                self._fit(estimator, rollout, self._features(rollout))
            if self._critic_fit is not None and self._critic_fit.layers.parameters:
                self._critic_fit.fit(
                    self._features(rollout),
                    th.as_tensor(rollout.returns.reshape(-1), dtype=th.float32, device=self.device),
                    epochs=self.critic_epochs,
                    batch_size=self.correction_batch_size,
                    learning_rate=self._critic_lr_schedule(self._current_progress_remaining),
                    rng=self._correction_rng,
                )

    @contextmanager
    def _around_update(self) -> Iterator[None]:
        """Change what must be otherwise while the algorithm's own ``train()`` runs."""
        if not self.normalize_before_weighting:
            yield
            return
        own: bool = getattr(self, "normalize_advantage", False)
        self.normalize_advantage = False
        try:
            yield
        finally:
            self.normalize_advantage = own

    def _weights(self, rollout: Rollout | None) -> np.ndarray:
        """
        Learn from the rollout what there is to learn, and weight it.

        :param rollout: the rollout; ``correction="power"`` does not need it
        :return: the weight of each sample, shape (n_steps, n_envs)
        """
        steps = self._clock.steps
        if self.correction_estimator is not None:
            assert rollout is not None
            ratio, scale = self._averaging_ratio(self.correction_estimator, rollout)
        else:
            ratio, scale = self._power(steps)
        strength = self._find_strength(ratio)
        self.correction_strength_used = strength
        weights = 1.0 + strength * (ratio - 1.0)
        if not self.normalize_correction:
            weights = (1.0 + strength * (scale - 1.0)) * weights  # without a correction, 1
        weights = weights.astype(np.float32)

        record = self.logger.record
        record("correction/strength", strength)
        record("correction/weight_min", float(weights.min()))
        record("correction/weight_max", float(weights.max()))
        record("correction/weight_std", float(weights.std()))
        record("correction/effective_sample_size", effective_sample_size(weights))
        record("correction/mean_episode_step", float(steps.mean()))
        return weights

    def _averaging_ratio(self, estimator: CorrectionEstimator, rollout: Rollout) -> tuple[np.ndarray, float]:
        """
        Fit the correction to the rollout, if its turn is before the update, and evaluate it.

        :param estimator: learns it
        :param rollout: the rollout
        :return: ĉ of each sample, and the mean estimate of γ^t
        """
        features, steps = self._features(rollout), rollout.steps
        estimator.observe(features, steps)
        if self.correction_order == "before":
            self._fit(estimator, rollout, features)
        ratio = estimator.weights(features).reshape(steps.shape)
        explained = explained_variance(ratio.reshape(-1) * estimator.mean, np.power(self.gamma, steps).reshape(-1))
        self.logger.record("correction/explained_variance", explained)
        if self.correction_shrinkage:
            self.logger.record("correction/shrinkage", estimator.shrinkage)
        return ratio, float(estimator.mean or 1.0)

    def _fit(self, estimator: CorrectionEstimator, rollout: Rollout, features: th.Tensor) -> None:
        """
        Let the estimator learn from the rollout.

        :param estimator: the estimator
        :param rollout: the rollout
        :param features: what the critic's layers see of it
        """
        rate = self._correction_lr_schedule(self._current_progress_remaining)
        if self.correction_network == "shared":
            estimator.fit(
                features, rollout.steps, rate, returns=rollout.returns, coefficients=self._loss_coefficients(rollout)
            )
        else:
            estimator.fit(features, rollout.steps, rate)
        if estimator.loss is not None:
            self.logger.record("correction/loss", estimator.loss)

    def _loss_coefficients(self, rollout: Rollout) -> tuple[float, float]:
        """
        Weight the value loss and the correction's, where both are fitted together.

        :param rollout: the rollout
        :return: their weights
        """
        if self.correction_coef is not None:
            return 1.0, self.correction_coef
        # The value loss is made small beside the correction's whatever the size of the rewards (the algorithm's own update
        # trains the critic as well); it, not the correction's, is scaled, for Adam does not follow gradients of sparse
        # rewards' size.
        return 0.1 / max(rollout.value_loss, float(rollout.returns.var()), 0.1), 1.0

    def _features(self, rollout: Rollout) -> th.Tensor:
        """
        Compute what the critic's layers see of a rollout; no fit changes it.

        :param rollout: the rollout
        :return: features, one row a sample
        """
        n_samples = rollout.steps.size
        # An extractor with layers (a CNN) is evaluated piece by piece, to need no more memory than SB3's own update.
        has_layers = any(True for _ in self.policy.vf_features_extractor.parameters())
        size = 64 if has_layers else n_samples
        self.policy.set_training_mode(False)
        pieces = [
            self._critic_features(*take_rows(rollout.critic_inputs, slice(start, start + size)))
            for start in range(0, n_samples, size)
        ]
        return th.cat(pieces) if len(pieces) > 1 else pieces[0]

    # How far to correct

    def _find_strength(self, ratio: np.ndarray) -> float:
        """
        Choose how far to correct.

        :param ratio: ĉ of each sample, shape (n_steps, n_envs)
        :return: k
        """
        if not isinstance(self.correction_strength, str):
            return float(self.correction_strength)
        if self.correction_estimator is not None and not self.correction_estimator.tested:
            return self._strength.before  # the first rollout has shaped ĉ: its blocks would agree with any noise in it
        passes: int = getattr(self, "n_epochs", 0) or getattr(self, "n_critic_updates", 1)
        if gradients_are_due(self._rollouts, passes):
            advantages = self.rollout_buffer.advantages
            if getattr(self, "normalize_advantage", False) or self.normalize_before_weighting:
                advantages = advantages - advantages.mean()
            parts = blocks(*ratio.shape)
            try:
                u, c = self._actor_gradients(ratio.reshape(-1), advantages.reshape(-1), parts)
            except NoGradient as error:
                warnings.warn(
                    f"The gradient of {type(self).__name__}'s actor cannot be taken ({error}), so that "
                    "correction_strength='auto' corrects in full (1). Override _log_prob(), or choose a number.",
                    stacklevel=2,
                )
                self.correction_strength = 1.0
                return 1.0
            self._strength.update(u, c, np.array([len(part) for part in parts]), independent_blocks(parts, self.n_envs))
        if self._strength.known:
            self.logger.record("correction/gradient_cosine", self._strength.cosine)
        return self._strength.k

    def _actor_gradients(
        self, weights: np.ndarray, advantages: np.ndarray, parts: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Compute the actor's gradients on parts of the rollout.

        :param weights: w of each sample
        :param advantages: A of each sample
        :param parts: the samples of each part
        :return: those of mean(A·log π) and of mean(w·A·log π), each of shape (n_parts, n_parameters)
        """
        own = type(self)._log_prob is not AveragingCorrection._log_prob
        if self._engine is not None and not own and self._engine.serves():
            return self._engine.actor_block_gradients(weights, advantages, parts)
        self.policy.set_training_mode(False)
        u, c = block_gradients(self._log_prob, self.policy, np.stack([advantages, weights * advantages]), parts)
        return u, c

    def _log_prob(self, rows: np.ndarray) -> th.Tensor:
        """
        Evaluate the log-probability of actions of the rollout, with a graph.

        :param rows: which samples, numbered (step, environment) by (step, environment)
        :return: shape (n,)
        """
        obs, actions = rollout_rows(self.rollout_buffer, self.action_space, rows)
        return self.policy.evaluate_actions(obs, actions)[1]

    # What a user may ask

    def predict_correction(self, observation: np.ndarray | dict[str, np.ndarray]) -> np.ndarray:
        """
        Estimate the correction ĉ(s) = d_{π,γ}(s) / d_π(s), with mean 1 over the last rollout, whatever the strength.

        :param observation: a batch of observations, as for ``predict`` (normalised, if the environment is)
        :return: ĉ(s) of each, shape (n,); all 1 where there is nothing to correct or nothing was learned yet
        """
        self.policy.set_training_mode(False)
        tensor, _ = self.policy.obs_to_tensor(observation)
        return self._predict_ratio(tensor)

    def _predict_ratio(self, *critic_inputs: Any) -> np.ndarray:
        """
        Estimate ĉ(s).

        :param critic_inputs: what ``policy.predict_values`` takes
        :return: shape (n,)
        """
        if self.correction == "power":
            raise ValueError(
                "predict_correction() needs correction='averaging': with correction='power' the weight γ^t is a function of "
                "the step inside the episode, not of the observation."
            )
        features = self._critic_features(*critic_inputs)
        estimator = self.correction_estimator
        return np.ones(len(features)) if estimator is None else estimator.ratio(features)
