"""Actor and critic of an SB3 policy on flat arrays: whether a policy can be served, and what its networks compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, MlpExtractor
from torch import nn

from sb3_avgcorr.common.policies import AsymmetricMlpExtractor
from sb3_avgcorr.fast.features import Features, Rows, features_of, rows_of, take, torch_features
from sb3_avgcorr.fast.heads import Head, head_of
from sb3_avgcorr.fast.mlp import Mlp, layers_of, pieces
from sb3_avgcorr.fast.parameters import FlatParameters, parameter_served, views
from sb3_avgcorr.fast.structure import POLICY_METHODS, Structure

#: features of a rollout are computed once if they are not more numbers than this, else minibatch by minibatch
LARGEST_MATRIX = 1_000_000


class ActorCritic:
    """
    Actor and critic of a policy. The policy's parameters become views of one flat array.

    :param policy: the policy
    :param actor: the actor's layers, to the parameters of its distribution
    :param critic: the critic's layers, to the value
    :param head: the distribution
    :param actor_features: what the actor's layers see of observations
    :param critic_features: what the critic's layers see of them
    :param has_layers_below: whether that comes from layers that are torch's (a CNN), and dear to compute
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        actor: Mlp,
        critic: Mlp,
        head: Head,
        actor_features: Features,
        critic_features: Features,
        has_layers_below: bool = False,
    ) -> None:
        self.policy, self.actor, self.critic, self.head = policy, actor, critic, head
        self.actor_features, self.critic_features = actor_features, critic_features
        self.has_layers_below = has_layers_below
        self.parameters = FlatParameters([*self.actor_parameters, *critic.parameters], policy.optimizer)
        self.parameters.adopt()
        for part in (actor, critic, head):
            part.bind(self.parameters.arrays)
        self.actor_gradients = actor.gradients(self.parameters.gradients)
        self.critic_gradients = critic.gradients(self.parameters.gradients)
        self.structure = Structure(policy)

    @property
    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters of the actor: its distribution's, then its layers'."""
        return [*self.head.parameters, *self.actor.parameters]

    @classmethod
    def of(cls, policy: BasePolicy) -> ActorCritic | None:
        """
        Read a policy.

        :param policy: any policy
        :return: its networks; None where they are not of the kinds that are served here
        """
        if not isinstance(policy, ActorCriticPolicy) or not _unchanged(policy, ActorCriticPolicy, POLICY_METHODS):
            return None
        extractor = policy.mlp_extractor
        if type(extractor) not in (MlpExtractor, AsymmetricMlpExtractor) or policy.use_sde or policy.squash_output:
            return None
        actor, critic = (
            layers_of([extractor.policy_net, policy.action_net]),
            layers_of([extractor.value_net, policy.value_net]),
        )
        head = head_of(policy)
        if actor is None or critic is None or head is None:
            return None
        extractors = policy.pi_features_extractor, policy.vf_features_extractor
        of_actor, of_critic = (features_of(each, policy.observation_space) for each in extractors)
        below = list(policy.features_extractor.parameters())
        if below and policy.share_features_extractor:
            of_actor = of_critic = torch_features(policy)
        elif below or of_actor is None or of_critic is None:
            return None
        elif _keys(extractors[0]) == _keys(extractors[1]):
            of_critic = of_actor  # both see the same: computed once
        networks = Mlp(actor), Mlp(critic)
        used = [*head.parameters, *networks[0].parameters, *networks[1].parameters]
        parameters = [*used, *below]
        optimized = [p for group in policy.optimizer.param_groups for p in group["params"]]
        if not _same(parameters, policy.parameters()) or not _same(parameters, optimized):
            return None
        if not all(map(parameter_served, parameters)):
            return None
        return cls(policy, *networks, head, of_actor, of_critic, has_layers_below=len(below) > 0)

    def inputs(self, observations: Any) -> tuple[np.ndarray, np.ndarray]:
        """
        What actor and critic see of observations.

        :param observations: one a row
        :return: the actor's and the critic's inputs, one row each; the same array, if they see the same
        """
        of_actor = self.actor_features(observations)
        same = self.critic_features is self.actor_features
        return of_actor, of_actor if same else self.critic_features(observations)

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """
        Values of states.

        :param inputs: what the critic sees, shape (n, inputs)
        :return: V(s), shape (n,)
        """
        return self.critic.evaluate(inputs)[:, 0]

    def log_probs(self, inputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """
        Log-probabilities of actions.

        :param inputs: what the actor sees, shape (n, inputs)
        :param actions: float32, shape (n, action_dim)
        :return: log π(a|s), shape (n,)
        """
        log_probs = np.empty(len(inputs), np.float32)
        for rows in pieces(len(inputs)):
            log_probs[rows] = self.head.evaluate(self.actor.forward(inputs[rows]), actions[rows])
        return log_probs

    def block_gradients(
        self, buffer: RolloutBuffer, weights: np.ndarray, advantages: np.ndarray, blocks: Sequence[Rows]
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""
        The actor's gradient on blocks of a rollout, with all samples alike and with each weighted: for block B, of n samples,

            u = 1/n Σ_B A·∇log π(a|s)        c = 1/n Σ_B w·A·∇log π(a|s)

        :param buffer: the rollout as collected
        :param weights: w, shape (n_steps · n_envs,)
        :param advantages: A, same shape
        :param blocks: rows of each block, in the order (step, environment)
        :return: u and c, a row for each block and a column for each of the actor's parameters that are trained
        """
        assert not buffer.generator_ready, "the rollout was rearranged by SB3's get()"
        trained = [p for p in self.actor_parameters if p.requires_grad]
        shape = (len(blocks), sum(p.numel() for p in trained))
        u, c = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        observations = rows_of(buffer.observations)
        actions = buffer.actions.reshape(len(weights), -1).astype(np.float32, copy=False)
        for index, rows in enumerate(blocks):
            w, a = weights[rows].astype(np.float32), advantages[rows].astype(np.float32)
            if len(a) == 0:
                continue
            a /= len(a)
            of_u, of_c = views(u[index], trained), views(c[index], trained)
            inputs = self.actor_features(take(observations, rows))
            self.head.evaluate(self.actor.forward(inputs), actions[rows])
            self.head.backward(w * a, 0.0, of_c)  # the head's own parameters; what it passes on is w times what follows
            delta = self.head.backward(a, 0.0, of_u)
            self.actor.backward(delta, self.actor.gradients(of_u), w, self.actor.gradients(of_c))
        return u, c


class Samples:
    """
    A complete rollout as an update reads it, one row a sample, in the order in which it lies in the buffer.

    The buffer's arrays stay as they are (SB3's own ``get()`` leaves them rearranged).

    :param network: the policy's networks
    :param buffer: the rollout
    """

    def __init__(self, network: ActorCritic, buffer: RolloutBuffer) -> None:
        assert buffer.full, "The rollout is not complete"
        self.n_samples = n = buffer.buffer_size * buffer.n_envs
        # SB3 numbers samples environment by environment; as collected they lie step by step
        self._n_steps, self._n_envs = (n, 1) if buffer.generator_ready else (buffer.buffer_size, buffer.n_envs)
        self._network = network
        self.observations: Any = buffer.observations if buffer.generator_ready else rows_of(buffer.observations)
        width = network.critic.layers[0].weight.shape[1]
        self._inputs = network.inputs(self.observations) if n * width <= LARGEST_MATRIX else None
        self.actions = buffer.actions.reshape(n, -1).astype(np.float32, copy=False)
        self.numbers = np.empty((4, n), np.float32)
        for row, array in enumerate((buffer.advantages, buffer.log_probs, buffer.returns, buffer.values)):
            self.numbers[row] = array.reshape(n)

    def inputs(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """
        What actor and critic see of some samples.

        :param rows: which samples
        :return: the actor's and the critic's inputs; the same array, if they see the same
        """
        if self._inputs is None:
            return self._network.inputs(take(self.observations, rows))
        of_actor, of_critic = self._inputs
        taken = take(of_actor, rows)
        return taken, taken if of_critic is of_actor else take(of_critic, rows)

    def order(self) -> np.ndarray:
        """
        The order of a pass over the rollout, drawn as SB3's buffer draws it.

        :return: each row once
        """
        permutation = np.random.permutation(self.n_samples)  # noqa: NPY002  # SB3's own stream
        if self._n_envs == 1:
            return permutation
        environment, step = np.divmod(permutation, self._n_steps)
        return step * self._n_envs + environment


def _same(some: Iterable[nn.Parameter], others: Iterable[nn.Parameter]) -> bool:
    return sorted(map(id, some)) == sorted(map(id, others))


def _keys(extractor: nn.Module) -> list[str]:
    return list(extractor.extractors) if isinstance(extractor, CombinedExtractor) else []


def _unchanged(thing: object, base: type, methods: tuple[str, ...]) -> bool:
    return all(getattr(type(thing), method) is getattr(base, method) for method in methods)
