"""The mixin that puts the correction between the rollout and SB3's ``train()``."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule, explained_variance, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from sb3_avgcorr.common import fast
from sb3_avgcorr.common.buffers import EpisodeClock, with_episode_clock
from sb3_avgcorr.common.correction import (
    CorrectionLoss,
    CorrectionNetwork,
    RunningMean,
    Shrinkage,
    correction_targets,
    effective_sample_size,
    lambda_returns,
    parameter_average,
    ratio,
)
from sb3_avgcorr.common.critic import CriticLearningRate, check_critic, critic_features, critic_layers
from sb3_avgcorr.common.interface import (
    check_hyperparameters,
    corrected_algorithm,
    documented_parameters,
    joint_signature,
    updates_as_sb3,
)
from sb3_avgcorr.common.lean_update import fused_adam_step


class Rollout(NamedTuple):
    """A rollout as it was collected: SB3's ``train()`` rearranges the buffer. Rows are (step, environment)."""

    critic_inputs: tuple[Any, ...]  # what policy.predict_values takes, one row a sample
    steps: np.ndarray  # t
    powers: np.ndarray  # γ^t
    returns: np.ndarray  # the critic's targets
    value_loss: float  # mean squared error of the values against them, when the rollout was collected


class AveragingCorrection(CriticLearningRate):
    r"""
    Corrects the discount-factor mismatch of an on-policy algorithm. Put it before the algorithm's class::

        class AveragingPPO(AveragingCorrection, PPO): ...

    For losses that are linear in the advantage, or PPO's clipped one, a state's weight w ≥ 0 can be multiplied into the
    advantage: w·min(rA, clip(r)A) = min(r·wA, clip(r)·wA). So the whole correction is a step between "rollout collected"
    and the algorithm's own ``train()``, and works for every algorithm that takes its advantages from the rollout buffer.

    :param correction: weight of a state: ``"averaging"``: ĉ(s), a regression of γ^t on the state; ``"power"``: γ^t itself;
        ``None``: 1, the algorithm as it is, to the bit
    :param correction_network: ``"shared"``: a head on the critic's layers; ``"separate"``: hidden layers of its own,
        of the critic's sizes. Both see what the critic's layers see; a features extractor (or memory) with parameters is
        left to the algorithm's own update
    :param correction_loss: ``"bce"``: cross-entropy on a sigmoid output; ``"mse"``: squared error, as in the paper
    :param correction_scale: factor of γ^t under ``"mse"``
    :param correction_lambda: λ of the regression's targets: 1: γ^t, as in the paper; less: bootstrapped, with less variance
    :param correction_coef: weight of the correction's loss beside the value loss when shared;
        ``None``: 1, beside a value loss scaled to a tenth at most, so that the size of the rewards does not matter
    :param correction_learning_rate: learning rate of the fit, can be a function of the remaining progress;
        ``None``: the algorithm's
    :param correction_epochs: passes over the rollout that fit the correction (shared: jointly with the value loss)
    :param correction_batch_size: minibatch size of these passes and of ``critic_epochs``; ``None``: the whole rollout
    :param correction_order: ``"before"``: fit on this rollout, then weigh it (Algorithm 1 of the paper);
        ``"after"``: weigh with the correction learned from earlier rollouts, then update, then fit (the authors' program)
    :param correction_averaging: weigh with the average of the separate network's parameters over recent fits, instead of
        those of the last one, which follow the few episodes of one rollout
    :param correction_shrinkage: draw the weights towards 1 as far as the correction, before it was fitted to a rollout,
        failed to predict it
    :param normalize_correction: divide the weights by their mean over the rollout; ``"running"``: by their mean over recent
        rollouts, for rollouts that are short against an episode
    :param normalize_before_weighting: normalise the advantages over the rollout before they are weighed (as in the authors'
        program) in place of the algorithm's own normalisation of the weighed ones (``normalize_advantage``)
    :param critic_learning_rate: learning rate of the critic's parameters, can be a function of the remaining progress;
        ``None``: ``learning_rate``
    :param critic_epochs: passes of the value loss alone after the algorithm's update, not cut short by ``target_kl``
    :param fast: lean rollout collection and optimiser where they apply (see docs/speed.md); ``False``: SB3's own loop.
        Where the algorithm must be SB3's to the bit (``correction=None``, ``gamma=1``) SB3's own loop is used anyway, unless
        it is ``"always"``: then the algorithm is SB3's to rounding
    :param critic_lambda: λ of the critic's targets in the passes above: ``None``: the algorithm's returns; 1: Monte-Carlo
    """

    rollout_buffer: EpisodeClock
    correction_net: CorrectionNetwork | None
    #: the correction with its parameters averaged over fits, which is the one that weighs; None if it is not averaged
    correction_average: AveragedModel | None
    #: optimises the correction, and the critic in the passes outside the algorithm's own update
    correction_optimizer: th.optim.Adam | None
    #: weights of the last rollout, shape (n_steps, n_envs); None before the first
    correction_weights: np.ndarray | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        algorithm = corrected_algorithm(cls, AveragingCorrection)
        cls.__signature__ = joint_signature(cls, AveragingCorrection, algorithm)  # type: ignore[attr-defined]
        cls.__doc__ = "\n".join(
            (
                inspect.cleandoc(cls.__doc__ or ""),
                "",
                documented_parameters(algorithm),
                documented_parameters(AveragingCorrection),
            )
        )

    def __init__(
        self,
        *args: Any,
        correction: Literal["averaging", "power"] | None = "averaging",
        correction_network: Literal["shared", "separate"] = "separate",
        correction_loss: CorrectionLoss = "bce",
        correction_scale: float = 1.0,
        correction_lambda: float = 0.7,
        correction_coef: float | None = None,
        correction_learning_rate: float | Schedule | None = 8e-3,
        correction_epochs: int = 4,
        correction_batch_size: int | None = 512,
        correction_order: Literal["before", "after"] = "before",
        correction_averaging: bool = True,
        correction_shrinkage: bool = True,
        normalize_correction: bool | Literal["running"] = True,
        normalize_before_weighting: bool = False,
        critic_learning_rate: float | Schedule | None = None,
        critic_epochs: int = 0,
        fast: bool | Literal["always"] = True,
        critic_lambda: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.correction = correction
        self.correction_network = correction_network
        self.correction_loss = correction_loss
        self.correction_scale = correction_scale
        self.correction_lambda = correction_lambda
        self.correction_coef = correction_coef
        self.correction_learning_rate = correction_learning_rate
        self.correction_epochs = correction_epochs
        self.correction_batch_size = correction_batch_size
        self.correction_order = correction_order
        self.correction_averaging = correction_averaging
        self.correction_shrinkage = correction_shrinkage
        self.normalize_correction = normalize_correction
        self.normalize_before_weighting = normalize_before_weighting
        self.critic_learning_rate = critic_learning_rate
        self.critic_epochs = critic_epochs
        self.critic_lambda = critic_lambda
        self.fast = fast

        self.correction_weights = None
        self.correction_net = None
        self.correction_average = None
        self.correction_optimizer = None
        # t of the observation that the next rollout begins with, as SB3's _last_episode_starts
        self._last_episode_steps: np.ndarray | None = None
        # mean of f over the last rollout, or over recent ones: what it is divided by
        self._mean_estimate: float | None = None
        self._running_estimate = RunningMean(MEMORY)
        # mean of γ^t over recent rollouts: what the correction starts from
        self._mean_power = RunningMean(MEMORY)
        self._shrinkage = Shrinkage(MEMORY)
        super().__init__(*args, **kwargs)

    # Set-up

    @property
    def corrects(self) -> bool:
        """Whether there is anything to correct: not with ``correction=None``, and not without discounting."""
        return self.correction is not None and self.gamma < 1.0

    def _setup_model(self) -> None:
        check_hyperparameters(self)
        super()._setup_model()
        if not isinstance(self.rollout_buffer, RolloutBuffer):
            raise TypeError(
                f"{type(self).__name__} cannot be corrected: its rollout_buffer is a {type(self.rollout_buffer).__name__}, "
                "not a RolloutBuffer of SB3, whose advantages the correction weighs."
            )
        lean = type(self.rollout_buffer) in fast.LeanRolloutBuffer.LEAN_CLASSES
        self.rollout_buffer = with_episode_clock(self.rollout_buffer)
        if self._last_episode_steps is not None and len(self._last_episode_steps) == self.n_envs:
            self.rollout_buffer.next_episode_steps = self._last_episode_steps.copy()
            self.rollout_buffer.reset()
        if self.seed is None and not hasattr(self, "_correction_rng"):
            # as SB3's, reproducible for a user who seeds torch; nothing is drawn from its stream
            self._correction_rng = np.random.default_rng(th.initial_seed())
        self._correction_lr_schedule = FloatSchedule(
            self.lr_schedule if self.correction_learning_rate is None else self.correction_learning_rate
        )
        # An update that is not SB3's may rely on anything that the lean one replaces.
        known = updates_as_sb3(type(self), AveragingCorrection)
        self._fast_applies = known and (self.fast == "always" or (self.fast and self.corrects))
        if self._fast_applies:
            self.rollout_buffer.lean = lean
            fast.use_fused_adam(self.policy.optimizer, self.policy.optimizer_kwargs)
        self._collects_fast = self._fast_applies and fast.collects_fast(
            self, corrected_algorithm(type(self), AveragingCorrection)
        )

        averaging = self.correction == "averaging" and self.corrects
        if averaging:
            check_critic(self.policy)
            self._build_correction_network()
        fits_critic = self.critic_epochs > 0 or (averaging and self.correction_network == "shared")
        self._critic_layers = critic_layers(self.policy) if fits_critic else []
        self._correction_parameters = [] if self.correction_net is None else list(self.correction_net.parameters())
        if self._critic_layers or self._correction_parameters:
            # fused: several times faster for the few small tensors of an MLP
            self.correction_optimizer = th.optim.Adam([*self._critic_layers, *self._correction_parameters], fused=True)

    def set_random_seed(self, seed: int | None = None) -> None:
        super().set_random_seed(seed)
        if seed is not None:
            self._correction_rng = np.random.default_rng(seed)

    def _build_correction_network(self) -> None:
        policy = self.policy
        if self.correction_network == "shared":
            input_dim, net_arch = policy.mlp_extractor.latent_dim_vf, []
        else:
            input_dim = getattr(policy, "lstm_output_dim", policy.features_dim)
            arch = policy.net_arch
            # An image policy has no hidden layers behind its features extractor; give the correction SB3's usual ones.
            net_arch = list(arch.get("vf", []) if isinstance(arch, dict) else arch) or [64, 64]
        # The network's initial weights must not be drawn from the streams that SB3 draws from.
        with th.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self.correction_net = CorrectionNetwork(
                input_dim, net_arch, policy.activation_fn, self.correction_loss, self.correction_scale
            ).to(self.device)
        if self.correction_network == "separate" and self.correction_averaging:
            average = parameter_average(MEMORY, self.n_steps * self.n_envs)
            self.correction_average = AveragedModel(self.correction_net, avg_fn=average)

    # Rollout

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: EpisodeClock, *args: Any, **kwargs: Any
    ) -> bool:
        try:
            if self._collects_fast:
                complete = fast.collect_rollouts(self, env, callback, rollout_buffer, *args, **kwargs)
            else:
                complete = super().collect_rollouts(env, callback, rollout_buffer, *args, **kwargs)
            if not complete:
                rollout_buffer.break_off(callback.locals.get("dones", np.zeros(env.num_envs, dtype=bool)))
        except Exception:
            # torch reports a NaN observation as a distribution with wrong parameters, an environment as a wrong action
            self._check_finite("observation", self._last_obs, rollout=False)
            raise
        finally:
            self._last_episode_steps = rollout_buffer.current_episode_steps
        return complete

    def _critic_inputs(self) -> tuple[Any, ...]:
        """
        :return: what ``policy.predict_values`` takes to evaluate the rollout, row (step, environment) by row
        """
        return (fast.flat_observations(self.rollout_buffer),)

    def _rollout(self) -> Rollout:
        buffer = self.rollout_buffer
        returns = buffer.returns
        if self.critic_lambda is not None:
            returns = lambda_returns(
                buffer.rewards,
                buffer.values,
                buffer.episode_starts,
                buffer.last_values,
                buffer.last_dones,
                self.gamma,
                self.critic_lambda,
            )
        value_loss = float(np.mean(np.square(buffer.values - returns)))
        return Rollout(self._critic_inputs(), buffer.episode_steps, buffer.discount_powers, returns, value_loss)

    def _check_finite(self, what: str, arrays: Any, *, rollout: bool = True) -> None:
        """
        :param what: what the environment returned
        :param arrays: an array or a dict of arrays
        :param rollout: whether their first axes are (n_steps, n_envs); else (n_envs,)
        """
        for key, array in arrays.items() if isinstance(arrays, dict) else [(None, arrays)]:
            if array is None or not np.issubdtype(array.dtype, np.floating) or np.isfinite(array).all():
                continue
            index = np.argwhere(~np.isfinite(array))[0]
            value = array[tuple(index)]
            where = f"environment {index[1]}, step {index[0]} of the rollout" if rollout else f"environment {index[0]}"
            raise ValueError(
                f"The {what} is not finite: {value} in {where}{'' if key is None else f', key {key!r}'}. Every {what} must be "
                "a finite number; SB3's VecCheckNan wrapper helps to find where it comes from."
            )

    # Update

    def train(self) -> None:
        """Weigh the advantages of the rollout, and let the algorithm update the policy with them."""
        buffer = self.rollout_buffer
        if not hasattr(buffer, "episode_steps"):
            raise TypeError(
                f"{type(self).__name__} cannot be corrected: its collect_rollouts() does not call the rollout buffer's "
                "compute_returns_and_advantage(), which reads the episode clock."
            )
        self._check_finite("reward", buffer.rewards)
        self._check_finite("observation", buffer.observations)
        self._check_finite("observation", self._last_obs, rollout=False)  # its value is in the advantages
        fits = self.correction_net is not None
        rollout = self._rollout() if fits or self.critic_epochs > 0 else None
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

        with self._around_update(), fast.lean_training(self.policy) if self._fast_applies else nullcontext():
            super().train()

        if rollout is not None:
            self.policy.set_training_mode(False)
            if fits and self.correction_order == "after":
                self._fit(rollout, self._features(rollout), self.correction_epochs, correction=True)
            if self.critic_epochs > 0 and self._critic_layers:
                self._fit(rollout, self._features(rollout), self.critic_epochs, correction=False)

    @contextmanager
    def _around_update(self) -> Iterator[None]:
        """What must be otherwise while the algorithm's own ``train()`` runs."""
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
        :param rollout: the rollout; ``correction="power"`` does not need it
        :return: the weight of each sample of the rollout
        """
        buffer = self.rollout_buffer
        powers = buffer.discount_powers
        self._mean_power.update(powers)
        if self.correction == "averaging":
            assert rollout is not None
            weights = self._averaging_weights(rollout)
        elif not self.normalize_correction:
            weights = powers
        elif self.normalize_correction == "running":
            weights = powers / self._mean_power.value
        else:
            # γ^t relative to the largest: the same after normalisation, and not all vanish however long the episode
            weights = ratio(np.power(self.gamma, buffer.episode_steps - buffer.episode_steps.min()))
        weights = weights.astype(np.float32)

        record = self.logger.record
        record("correction/weight_min", float(weights.min()))
        record("correction/weight_max", float(weights.max()))
        record("correction/weight_std", float(weights.std()))
        record("correction/effective_sample_size", effective_sample_size(weights))
        record("correction/mean_episode_step", float(buffer.episode_steps.mean()))
        return weights

    def _averaging_weights(self, rollout: Rollout) -> np.ndarray:
        """
        Fit the correction to the rollout, if its turn is before the update, and evaluate it.

        :param rollout: the rollout
        :return: the weight of each sample
        """
        features = self._features(rollout)
        shape = rollout.steps.shape
        estimates = self._estimates(features).reshape(shape)
        if self.correction_shrinkage:
            # both divided by their means over recent rollouts: one alone may hold only early or only late steps
            forecast = estimates / (self._running_estimate.value if self._running_estimate.count > 0.0 else estimates.mean())
            self._shrinkage.update(forecast, rollout.powers / self._mean_power.value, rollout.steps)
        if self.correction_order == "before":
            self._fit(rollout, features, self.correction_epochs, correction=True)
            estimates = self._estimates(features).reshape(shape)
        finite = np.isfinite(estimates)
        if not finite.all():
            warnings.warn("The correction's estimate is not finite; samples where it is not are weighed by 1.", stacklevel=2)
            estimates = np.where(finite, estimates, estimates[finite].mean() if finite.any() else 1.0)
        self._running_estimate.update(estimates)
        self._mean_estimate = (
            self._running_estimate.value if self.normalize_correction == "running" else float(estimates.mean())
        )
        self.logger.record("correction/explained_variance", explained_variance(estimates.flatten(), rollout.powers.flatten()))
        weights = estimates / self._mean_estimate if self._mean_estimate > 0.0 else np.ones_like(estimates)
        if self.correction_shrinkage:
            self.logger.record("correction/shrinkage", self._shrinkage.factor)
            weights = self._shrinkage(weights)
        return weights if self.normalize_correction else self._mean_estimate * weights

    # The fit

    def _features(self, rollout: Rollout) -> th.Tensor:
        """
        :param rollout: the rollout
        :return: what the critic's layers see of it, one row a sample; computed once, for no fit changes it
        """
        n_samples = rollout.steps.size
        # An extractor with layers (a CNN) is evaluated piece by piece, to need no more memory than SB3's own update.
        size = 64 if fast.has_parameters(self.policy.vf_features_extractor) else n_samples
        pieces = [
            critic_features(self.policy, *_slice(rollout.critic_inputs, slice(start, start + size)))
            for start in range(0, n_samples, size)
        ]
        return th.cat(pieces) if len(pieces) > 1 else pieces[0]

    @th.no_grad()
    def _estimates(self, features: th.Tensor, *, averaged: bool = True) -> np.ndarray:
        """
        :param features: what the critic's layers see, shape (n, features_dim)
        :param averaged: whether to use the averaged parameters, if there are any
        :return: f(s), shape (n,)
        """
        assert self.correction_net is not None
        net: Any = self.correction_net
        if averaged and self.correction_average is not None and self.correction_average.n_averaged > 0:
            net = self.correction_average
        shared = self.correction_network == "shared"
        # piece by piece: hidden layers of a long rollout would need more memory than all of SB3
        latents = (self.policy.mlp_extractor.forward_critic(x) if shared else x for x in features.split(ESTIMATION_BATCH))
        return self.correction_net.estimates(th.cat([net(latent) for latent in latents])).cpu().numpy()

    def _fit(self, rollout: Rollout, features: th.Tensor, epochs: int, *, correction: bool) -> None:
        """
        Passes over the rollout that fit the correction, the critic, or both; the actor is not touched.

        :param rollout: the rollout
        :param features: what the critic's layers see of it
        :param epochs: number of passes
        :param correction: fit the correction (with the critic, if they share layers); else the critic alone
        """
        policy, net, optimizer = self.policy, self.correction_net, self.correction_optimizer
        through_critic = not correction or self.correction_network == "shared"
        with_value = through_critic and len(self._critic_layers) > 0  # none, if the user froze them
        schedule = self._correction_lr_schedule if correction else self._critic_lr_schedule
        assert optimizer is not None
        update_learning_rate(optimizer, schedule(self._current_progress_remaining))
        parameters = (self._critic_layers if with_value else []) + (self._correction_parameters if correction else [])
        if correction:
            self._calibrate(rollout.steps.size)

        returns = self._to_tensor(rollout.returns)
        value_coef, coef = self._loss_coefficients(rollout)
        n_samples = len(features)
        size = n_samples if self.correction_batch_size is None else min(self.correction_batch_size, n_samples)
        targets = self._to_tensor(rollout.powers)
        losses: list[th.Tensor] = []
        step = fused_adam_step(optimizer) or optimizer.step
        for _ in range(epochs):
            if correction and self.correction_lambda < 1.0:
                estimates = self._estimates(features, averaged=False).reshape(rollout.steps.shape)
                targets = self._to_tensor(correction_targets(rollout.steps, estimates, self.gamma, self.correction_lambda))
            order = th.as_tensor(self._correction_rng.permutation(n_samples), device=self.device)
            shuffled = (tensor[order].split(size) for tensor in (features, targets, returns))
            for inputs, target, value_target in zip(*shuffled, strict=True):
                latent = policy.mlp_extractor.forward_critic(inputs) if through_critic else inputs
                if with_value:
                    loss = F.mse_loss(policy.value_net(latent).squeeze(-1), value_target)
                if correction:
                    assert net is not None
                    correction_loss = net.loss(net(latent), target)
                    loss = value_coef * loss + coef * correction_loss if with_value else correction_loss
                    losses.append(correction_loss.detach())
                for parameter, gradient in zip(parameters, th.autograd.grad(loss, parameters), strict=True):
                    parameter.grad = gradient
                step()
        # SB3 must not find our gradients in the critic's parameters.
        for parameter in parameters:
            parameter.grad = None
        if losses:
            self.logger.record("correction/loss", float(th.stack(losses).mean()))
            if self.correction_average is not None:
                self.correction_average.update_parameters(cast(CorrectionNetwork, net))

    def _loss_coefficients(self, rollout: Rollout) -> tuple[float, float]:
        """
        :param rollout: the rollout
        :return: weights of the value loss and of the correction's, where both are fitted together
        """
        if self.correction_coef is not None:
            return 1.0, self.correction_coef
        # The value loss is made small beside the correction's whatever the size of the rewards (the algorithm's own update
        # trains the critic as well); it, not the correction's, is scaled, for Adam does not follow gradients of sparse
        # rewards' size.
        return 0.1 / max(rollout.value_loss, float(rollout.returns.var()), 0.1), 1.0

    def _calibrate(self, n_samples: int) -> None:
        """
        Until the mean of γ^t is known from enough samples (the first short rollouts hold only the first steps of episodes),
        let the correction follow it, faster than its fit would.

        :param n_samples: number of samples of the rollout
        """
        if self._mean_power.count - n_samples < CALIBRATION_SAMPLES:
            assert self.correction_net is not None
            shift = self.correction_net.calibrate(self._mean_power.value)
            if self.correction_average is not None:
                cast(CorrectionNetwork, self.correction_average.module).shift(shift)

    def _to_tensor(self, array: np.ndarray) -> th.Tensor:
        return th.as_tensor(array.reshape(-1), dtype=th.float32, device=self.device)

    # What a user may ask

    def predict_correction(self, observation: np.ndarray | dict[str, np.ndarray]) -> np.ndarray:
        """
        The learned correction ĉ(s), an estimate of d_{π,γ}(s) / d_π(s) with mean 1 over the last rollout.

        :param observation: a batch of observations, as for ``predict`` (normalised, if the environment is)
        :return: ĉ(s) of each, shape (n,); all 1 where there is nothing to correct or nothing was learned yet
        """
        if self.correction == "power":
            raise ValueError(
                "predict_correction() needs correction='averaging': with correction='power' the weight γ^t is a function of "
                "the step inside the episode, not of the observation."
            )
        self.policy.set_training_mode(False)
        tensor, _ = self.policy.obs_to_tensor(observation)
        return self._predict_ratio(tensor)

    def _predict_ratio(self, *critic_inputs: Any) -> np.ndarray:
        """
        :param critic_inputs: what ``policy.predict_values`` takes
        :return: ĉ(s), shape (n,)
        """
        features = critic_features(self.policy, *critic_inputs)
        if self.correction_net is None or self._mean_estimate is None:
            return np.ones(len(features))
        if self._mean_estimate == 0.0:  # all of f has vanished
            return np.ones(len(features))
        weights = self._estimates(features) / self._mean_estimate
        return self._shrinkage(weights) if self.correction_shrinkage else weights

    # Saving

    def _excluded_save_params(self) -> list[str]:
        own = [*OWN_STATE, "correction_weights", "_critic_layers", "_correction_parameters"]
        return [*super()._excluded_save_params(), *own]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return state_dicts + [name for name in OWN_STATE if getattr(self, name) is not None], variables

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """
        As SB3's; parameters of a model without a correction (one of SB3's own, say) are taken too, the correction's own
        ones then stay as they are.

        :param load_path_or_dict: a file of a saved model, or what ``get_parameters`` gives
        :param exact_match: whether every parameter of the algorithm must be there
        :param device: device on which the code should run
        """
        params: Any = load_path_or_dict
        if not isinstance(load_path_or_dict, dict):
            _, params, _ = load_from_zip_file(load_path_or_dict, device=device, load_data=False)
        have = set(self._get_torch_save_params()[0])
        params = {name: value for name, value in params.items() if name in have or name not in OWN_STATE}
        if exact_match:
            missing = have.intersection(OWN_STATE) - params.keys()
            if "correction_net" in missing:
                warnings.warn("The file holds no correction (a model without one was saved): it starts afresh.", stacklevel=2)
            own = self.get_parameters()
            params.update({name: own[name] for name in missing})
        saved, own_optimizer = params.get("policy.optimizer"), self.policy.optimizer.state_dict()
        if saved is not None and len(saved["param_groups"]) != len(own_optimizer["param_groups"]):
            warnings.warn("The optimiser starts afresh: only one of the two models has a critic_learning_rate.", stacklevel=2)
            params["policy.optimizer"] = own_optimizer
        super().set_parameters(params, exact_match=exact_match, device=device)


#: state of the correction in a saved model
OWN_STATE = ("correction_net", "correction_average", "correction_optimizer")

#: number of samples over which the correction forgets earlier rollouts
MEMORY = 15_000.0

#: number of samples from which the mean of γ^t is known well enough
CALIBRATION_SAMPLES = 2_048
#: rows the correction is evaluated on at once
ESTIMATION_BATCH = 4096


def _slice(inputs: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    """Some rows of ``predict_values``' inputs: tensors of samples, dicts of them, or LSTM states (layer, sample, unit)."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: array[rows] for key, array in value.items()}
        if isinstance(value, tuple):
            return tuple(state[:, rows].contiguous() for state in value)
        return value[rows]

    return tuple(take(value) for value in inputs)
