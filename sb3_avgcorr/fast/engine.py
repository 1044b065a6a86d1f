"""The engine: a model's rollouts and updates without torch, where it is the same computation and faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.common.estimator import CorrectionEstimator
from sb3_avgcorr.fast import a2c, ppo
from sb3_avgcorr.fast.callbacks import Begun
from sb3_avgcorr.fast.collect import collect
from sb3_avgcorr.fast.features import Rows
from sb3_avgcorr.fast.network import ActorCritic
from sb3_avgcorr.fast.parameters import optimizer_served
from sb3_avgcorr.fast.regressor import use_numpy

#: the updates that are written out here
UPDATES: dict[Callable[..., Any], Callable[[Any, ActorCritic], None]] = {
    PPO.train: ppo.train,
    A2C.train: a2c.train,
}
#: Torch may share an operation on more than 32768 numbers among threads; numpy shares matrix products only. On one thread the
#: engine was ahead wherever it was measured (widths 64 to 512, minibatches 64 to 4096: 5.3 to 1.1 times SB3's speed); with
#: more threads, updates whose layers hold more numbers than this (minibatch × width) are left to torch.
LARGEST_LAYER = 2 * 32768
#: methods of the rollout buffer whose work is done here
BUFFER_METHODS = ("get", "add", "compute_returns_and_advantage", "swap_and_flatten", "to_torch")


class Engine:
    """
    Collects rollouts and updates the policy as a model's own methods do, to rounding, in less time.

    The model stays SB3's: its parameters and its optimiser's state are the same tensors, the rollout is in its buffer, the
    random numbers come from the same streams. Copies of a model (``deepcopy``, pickle) get an engine of their own.

    :param model: the model
    :param algorithm: the class whose ``collect_rollouts()`` and ``train()`` are meant
    """

    def __init__(self, model: OnPolicyAlgorithm, algorithm: type[OnPolicyAlgorithm]) -> None:
        self.model, self.algorithm = model, algorithm
        self._network: ActorCritic | None = None
        #: values of the states after the last rollout, shape (n_envs,); None before it is complete
        self.last_values: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "algorithm": self.algorithm, "_network": None, "last_values": self.last_values}

    @property
    def network(self) -> ActorCritic:
        """The policy's networks."""
        assert self._network is not None, "ask serves() first"
        return self._network

    def _is_ready(self) -> bool:
        """Whether the policy's MLPs can be evaluated here now; if so their parameters become views of the engine's array."""
        buffer = self.model.rollout_buffer
        if type(buffer) not in (RolloutBuffer, DictRolloutBuffer) or any(name in vars(buffer) for name in BUFFER_METHODS):
            return False
        network = self._network
        if network is None or network.policy is not self.model.policy or not network.structure.is_current():
            network = self._network = ActorCritic.of(self.model.policy)
        return network is not None and network.structure.is_undisturbed() and network.parameters.adopt()

    def serves(self) -> bool:
        """
        Tell whether all of the policy can be evaluated here *now*, and make its parameters views of the engine's array.

        Cheap enough to ask before every rollout and update. A hook, a method put in place of another on an object, another
        device or data type, a policy that was rebuilt: all of it is noticed here.

        :return: whether it can; not if it has layers in its features extractor (a CNN), of which only rollouts are collected
        """
        return self._is_ready() and not self.network.has_layers_below

    def trains(self) -> bool:
        """
        Tell whether :meth:`train` does the same as the algorithm's ``train()`` *now*. Ask before every update.

        :return: whether it does, and is faster
        """
        return (
            self.algorithm.train in UPDATES
            and self.serves()
            and (th.get_num_threads() == 1 or self._largest_layer() <= LARGEST_LAYER)
            and optimizer_served(self.model.policy.optimizer)
            and self.network.parameters.adopt_moments()
        )

    def collects(self) -> bool:
        """
        Tell whether :meth:`collect` does the same as the algorithm's ``collect_rollouts()`` *now*. Ask before every rollout.

        :return: whether it does
        """
        return (
            self.algorithm.collect_rollouts is OnPolicyAlgorithm.collect_rollouts
            and not self.model.use_sde
            and self._is_ready()
        )

    def collect(self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int) -> bool:
        """
        Collect a rollout, as ``OnPolicyAlgorithm.collect_rollouts()`` does.

        :param env: the training environment
        :param callback: called at each step, and at the beginning and end of the rollout
        :param rollout_buffer: the buffer to fill
        :param n_rollout_steps: number of steps per environment
        :return: False if a callback ended the rollout prematurely
        """
        self.last_values = None
        self.network.structure.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        if not self._is_ready():  # the callback has made a policy of it that is not served
            begun: Any = Begun(callback)
            return self.algorithm.collect_rollouts(self.model, env, begun, rollout_buffer, n_rollout_steps)
        self.last_values = collect(self.model, self.network, env, callback, rollout_buffer, n_rollout_steps)
        return self.last_values is not None

    def not_finite(self) -> str | None:
        """
        What is not finite: the policy's parameters, or what they made of the last rollout.

        :return: its name; None if all is well
        """
        buffer = self.model.rollout_buffer
        suspects = {
            "parameters": self.network.parameters.values,
            "values": buffer.values,
            "log-probabilities": buffer.log_probs,
        }
        return next((name for name, array in suspects.items() if not np.isfinite(array).all()), None)

    def actor_block_gradients(
        self, weights: np.ndarray, advantages: np.ndarray, blocks: Sequence[Rows]
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        The actor's gradient on blocks of the last rollout; see :meth:`ActorCritic.block_gradients`.

        :param weights: a weight for each sample, shape (n_steps · n_envs,)
        :param advantages: the advantage of each sample, same shape
        :param blocks: rows of each block
        :return: the gradients of mean(A·log π) and of mean(w·A·log π), a row for each block
        """
        with np.errstate(all="ignore"):
            return self.network.block_gradients(self.model.rollout_buffer, weights, advantages, blocks)

    def _largest_layer(self) -> int:
        """Number of numbers in the largest layer of a minibatch."""
        buffer = self.model.rollout_buffer
        n_samples = buffer.buffer_size * buffer.n_envs
        layers = (*self.network.actor.layers, *self.network.critic.layers)
        return min(getattr(self.model, "batch_size", n_samples), n_samples) * max(len(layer.weight) for layer in layers)

    def serve(self, estimator: CorrectionEstimator) -> None:
        """
        Let the correction's estimator use the same arithmetic, where it is the same computation.

        :param estimator: the estimator, with layers of its own
        """
        use_numpy(estimator)

    def train(self) -> None:
        """Update the policy with the rollout in the model's buffer, as the algorithm's ``train()`` does."""
        UPDATES[self.algorithm.train](self.model, self.network)


def engine_for(model: OnPolicyAlgorithm, algorithm: type[OnPolicyAlgorithm] | None = None) -> Engine | None:
    """
    The engine for a model, if there is anything that it can do for it.

    :param model: a model whose policy and rollout buffer are set up
    :param algorithm: the class whose ``collect_rollouts()`` and ``train()`` are meant; None: the model's own
    :return: the engine; None where SB3's own loop and update must be used
    """
    engine = Engine(model, algorithm or type(model))
    return engine if engine.serves() or engine.collects() else None
