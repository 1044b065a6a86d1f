from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import nn

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.common.critic import CriticLearningRate, critic_parameters
from sb3_avgcorr.common.rollout import Rollout

SelfBAC = TypeVar("SelfBAC", bound="BAC")
SelfAveragingBAC = TypeVar("SelfAveragingBAC", bound="AveragingBAC")


class BAC(CriticLearningRate, A2C):
    """
    Batch actor-critic (Konda and Tsitsiklis, 1999) as in Che, Vasan and Mahmood (2023): A2C with one-step TD advantages,
    Adam, a learning rate of the critic's own and no gradient clipping. One update per ``n_steps * n_envs`` steps.

    The defaults are the paper's tuned settings of "our correction" (its baselines' settings: ``learning_rate=8e-4,
    critic_learning_rate=None, n_steps=64, vf_coef=8.8, policy_kwargs=dict(net_arch=dict(pi=[32, 32], vf=[128, 128]))``;
    see docs/results/classic-control.md for both), so that with and without the correction the default is the same.
    They belong to one environment. The Gaussian acts in the environment's own units: put Gymnasium's ``RescaleAction``
    around one whose actions are not in [-1, 1].

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...). Unless ``policy_kwargs`` says otherwise, actor and
        critic have two ReLU layers of 64 units each and torch's own initialisation
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The actor's learning rate, it can be a function of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per update
        (i.e. batch size is n_steps * n_env where n_env is number of environment copies running in parallel)
    :param gamma: Discount factor
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator; 0: one-step TD
    :param ent_coef: Entropy coefficient for the loss calculation
    :param vf_coef: Value function coefficient for the loss calculation
    :param max_grad_norm: The maximum value for the gradient clipping; infinity: no clipping
    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE) instead of action noise exploration
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE
        Default: -1 (only sample at the beginning of the rollout)
    :param rollout_buffer_class: Rollout buffer class to use. If ``None``, it will be automatically selected.
    :param rollout_buffer_kwargs: Keyword arguments to pass to the rollout buffer on creation.
    :param normalize_advantage: Whether to normalize or not the advantage
    :param stats_window_size: Window size for the rollout logging, specifying the number of episodes to average
        the reported success rate, mean episode length, and mean reward over
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation
    :param verbose: Verbosity level: 0 for no output, 1 for info messages (such as device or wrappers used), 2 for
        debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run.
        Setting it to auto, the code will be run on the GPU if possible.
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param critic_learning_rate: Learning rate of the critic's parameters, it can be a function of the current progress
        remaining; ``None``: ``learning_rate``
    :param fixed_std: Continuous actions: leave the Gaussian's standard deviation at its initial value, 1 by default
        (``log_std_init`` in ``policy_kwargs``), instead of learning it
    """

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        gamma: float = 0.995,
        gae_lambda: float = 0.0,
        ent_coef: float = 0.0,
        vf_coef: float = 9.6,
        max_grad_norm: float = float("inf"),
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        normalize_advantage: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        critic_learning_rate: float | Schedule | None = 9e-3,
        fixed_std: bool = True,
    ) -> None:
        # AveragingCorrection has an argument of the same name. Where it stands before this class, it took the value.
        self.critic_learning_rate = self.__dict__.get("critic_learning_rate", critic_learning_rate)
        self.fixed_std = fixed_std
        kwargs: dict[str, Any] = {
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": nn.ReLU,
            "ortho_init": False,
            **(policy_kwargs or {}),
        }
        if "optimizer_class" not in kwargs:
            kwargs.setdefault("optimizer_kwargs", {"eps": 1e-8})  # torch's own, where SB3's policies have 1e-5
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_rms_prop=False,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            normalize_advantage=normalize_advantage,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        policy = self.policy
        if self.fixed_std and hasattr(policy, "log_std"):
            policy.log_std.requires_grad_(False)

    def learn(
        self: SelfBAC,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "BAC",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfBAC:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)


class AveragingBAC(AveragingCorrection, BAC):
    """
    Batch actor-critic with the averaging correction of the discount-factor mismatch, as in Che, Vasan and Mahmood (2023),
    with the settings of their "our correction". Takes every argument of :class:`BAC`, in the same order and with the same
    defaults, and the correction's as keywords. With ``correction=None`` it is :class:`BAC`, to the bit.

    A correction that shares the critic's layers is learned with the critic, in one step a rollout at ``critic_learning_rate``
    on ``vf_coef`` times the value loss plus the loss of the correction; A2C's own step is then the actor's alone. That is what
    ``correction_coef=None`` and ``correction_learning_rate=None`` mean here; if given, they take the place of ``1 / vf_coef``
    and, for both, of ``critic_learning_rate``. The correction's other defaults are the paper's, too: squared error on γ^t
    times 29, weights not divided by their mean (a rollout is short against an episode), not drawn towards 1.
    """

    correction_strength = 1.0
    correction_network = "shared"
    correction_loss = "mse"
    correction_scale = 29.0
    correction_lambda = 1.0
    correction_learning_rate = None
    correction_epochs = 1
    correction_batch_size = None
    correction_shrinkage = False
    normalize_correction = False
    critic_learning_rate = 9e-3

    @property
    def _correction_lr_schedule(self) -> FloatSchedule:
        return self._critic_lr_schedule if self.correction_learning_rate is None else super()._correction_lr_schedule

    def _set_up_parts(self) -> None:
        super()._set_up_parts()
        # whether the correction's fit trains all of the critic, so that A2C's step need not do so again
        self._fits_critic = (
            self.correction_estimator is not None
            and self._critic_layers is not None
            and self.correction_network == "shared"
            and self.correction_epochs != 0
            and len(critic_parameters(self.policy)) == len(self._critic_layers.parameters)
            and not any(True for _ in self.policy.vf_features_extractor.parameters())
        )

    def _loss_coefficients(self, rollout: Rollout) -> tuple[float, float]:
        return (self.vf_coef, 1.0) if self.correction_coef is None else super()._loss_coefficients(rollout)

    @contextmanager
    def _around_update(self) -> Iterator[None]:
        vf_coef = self.vf_coef
        if self._fits_critic:
            self.vf_coef = 0.0
        try:
            with super()._around_update():
                yield
        finally:
            self.vf_coef = vf_coef

    def learn(
        self: SelfAveragingBAC,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "AveragingBAC",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingBAC:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
