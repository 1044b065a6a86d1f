"""What the critic of an actor-critic policy sees, and which parameters are its own."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule, update_learning_rate
from torch import nn
from torch.nn import functional as F


@th.no_grad()
def critic_features(policy: ActorCriticPolicy, obs: PyTorchObs) -> th.Tensor:
    """
    Compute what the critic's own layers see: the observations after the features extractor.

    :param policy: the policy
    :param obs: observations as the policy's ``predict_values`` takes them
    :return: features, shape (n, features_dim), without a graph
    """
    return BaseModel.extract_features(policy, obs, policy.vf_features_extractor)


def check_critic(policy: Any, features: Callable[..., th.Tensor]) -> None:
    """
    Raise a TypeError if a policy's critic cannot be read: if its value is not that of its layers behind the features.

    :param policy: the policy
    :param features: computes what the critic's layers see from what ``predict_values`` takes
    """
    name = type(policy).__name__
    parts = ("predict_values", "mlp_extractor", "value_net", "pi_features_extractor", "vf_features_extractor")
    missing = [part for part in parts if not hasattr(policy, part)]
    if missing:
        raise TypeError(
            f"{name} has no {missing[0]}, by which its critic is read. Use a policy that has one, as SB3's ActorCriticPolicy."
        )
    if type(policy).predict_values.__module__.partition(".")[0] in ("stable_baselines3", "sb3_contrib"):
        return
    # A user's own: try it on an observation. The space's own random stream must not be touched.
    space = copy.deepcopy(policy.observation_space)
    space.seed(0)
    policy.set_training_mode(False)
    with th.no_grad():
        obs, _ = policy.obs_to_tensor(space.sample())
        values = policy.value_net(policy.mlp_extractor.forward_critic(features(obs)))
        if not th.allclose(values, policy.predict_values(obs), rtol=1e-4, atol=1e-5):
            raise TypeError(
                f"{name}.predict_values() does not come to value_net(mlp_extractor.forward_critic(features)), where the "
                "correction reads the critic. Use a policy that does, as SB3's ActorCriticPolicy, or override "
                "_critic_features() in your algorithm to give what the critic's layers see."
            )


def _reached(output: th.Tensor, parameters: list[nn.Parameter]) -> set[nn.Parameter]:
    """The parameters that an output depends on, whatever their values: an unused one has no gradient, not a zero one."""
    if not output.requires_grad:
        return set()
    gradients = th.autograd.grad(output.sum(), parameters, allow_unused=True)
    return {p for p, g in zip(parameters, gradients, strict=True) if g is not None}


def critic_layers(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """
    Parameters between the critic's features and its value that the actor does not use: those a fit of the critic may
    change without changing what the actor does. The features extractor is not among them.

    :param policy: the policy
    :return: parameters in the policy's own order
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]

    def features(extractor: Any) -> th.Tensor:
        return th.zeros(1, getattr(policy, "lstm_output_dim", extractor.features_dim), device=policy.device)

    was_training = policy.training
    policy.set_training_mode(False)  # nothing may be drawn or counted by dropout or batch normalisation
    with th.enable_grad():
        critic = policy.mlp_extractor.forward_critic(features(policy.vf_features_extractor))
        actor = policy.mlp_extractor.forward_actor(features(policy.pi_features_extractor))
        of_critic, of_actor = _reached(policy.value_net(critic), parameters), _reached(actor, parameters)
    policy.set_training_mode(was_training)
    return [p for p in parameters if p in of_critic - of_actor]


def critic_parameters(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """
    All parameters that only the critic uses: its layers, and its features extractor and memory where they are its own.

    :param policy: the policy
    :return: parameters in the policy's own order
    """
    own: set[nn.Parameter] = set(critic_layers(policy))
    modules: Iterable[nn.Module | None] = (getattr(policy, "lstm_critic", None), getattr(policy, "critic", None))
    if not policy.share_features_extractor:
        modules = (*modules, policy.vf_features_extractor)
    own.update(p for module in modules if module is not None for p in module.parameters())
    return [p for p in policy.parameters() if p in own]


class CriticLayers:
    """
    The critic's layers behind its features, as far as a fit may change them without changing what the actor does.

    :param policy: the policy
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._policy = policy
        #: none, if the actor uses all of them or the user froze them
        self.parameters = critic_layers(policy)

    def latent(self, features: th.Tensor) -> th.Tensor:
        """
        Pass features through the hidden layers.

        :param features: what the critic's layers see
        :return: the input of the value head
        """
        return self._policy.mlp_extractor.forward_critic(features)

    def loss(self, latent: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """
        Compute the value loss.

        :param latent: what :meth:`latent` gave
        :param returns: the critic's targets
        :return: mean squared error of the values
        """
        return F.mse_loss(self._policy.value_net(latent).squeeze(-1), returns)


class CriticFit:
    """
    Passes over a rollout that fit the critic alone, with an optimiser of their own.

    :param layers: the critic's layers
    """

    def __init__(self, layers: CriticLayers) -> None:
        self.layers = layers
        self.optimizer = th.optim.Adam(layers.parameters)

    def fit(
        self,
        features: th.Tensor,
        returns: th.Tensor,
        *,
        epochs: int,
        batch_size: int | None,
        learning_rate: float,
        rng: np.random.Generator,
    ) -> None:
        """
        Regress the value on the returns.

        :param features: what the critic's layers see, shape (n, features_dim)
        :param returns: the critic's targets, shape (n,)
        :param epochs: number of passes
        :param batch_size: samples of a gradient step; None: all
        :param learning_rate: learning rate
        :param rng: draws the order of the samples
        """
        update_learning_rate(self.optimizer, learning_rate)
        for _ in range(epochs):
            order = th.as_tensor(rng.permutation(len(features)), device=features.device)
            for rows in order.split(batch_size or len(order)):
                loss = self.layers.loss(self.layers.latent(features[rows]), returns[rows])
                gradient_step(self.optimizer, loss, self.layers.parameters)


def gradient_step(optimizer: th.optim.Optimizer, loss: th.Tensor, parameters: list[nn.Parameter]) -> None:
    """
    Make one step on some parameters, and leave no gradient where SB3's update would find it.

    :param optimizer: the optimiser
    :param loss: what to descend
    :param parameters: the parameters to change, all of which the optimiser has
    """
    for parameter, gradient in zip(parameters, th.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


class CriticLearningRate(OnPolicyAlgorithm):
    """
    Base of algorithms whose critic may have a learning rate of its own: a second group of the policy's optimiser.

    Parameters of the optimiser are given, taken and saved in one group, as SB3 has them, so that models with and without a
    learning rate of the critic's own can read each other.
    """

    #: learning rate of the critic's parameters, can be a function of the remaining progress; None: ``learning_rate``
    critic_learning_rate: float | Schedule | None = None

    def _setup_model(self) -> None:
        super()._setup_model()
        own = self.critic_learning_rate
        if isinstance(own, (int, float)) and not own >= 0.0:
            raise ValueError(f"critic_learning_rate={own!r} makes no sense: it must be None, a number >= 0 or a schedule.")
        self._group_critic()

    @property
    def _critic_lr_schedule(self) -> FloatSchedule:
        """Learning rate of the critic, as the option says now."""
        own = self.critic_learning_rate
        return FloatSchedule(self.lr_schedule if own is None else own)

    def _group_critic(self) -> None:
        """Put the critic's parameters in a group of their own, if they have a rate of their own and there is but one group."""
        optimizer = self.policy.optimizer
        if self.critic_learning_rate is None or len(optimizer.param_groups) > 1:
            return
        check_critic(self.policy, self._critic_features)
        of_critic = {id(p) for p in critic_parameters(self.policy)}
        (group,) = optimizer.param_groups
        everything = group["params"]
        group["params"] = [p for p in everything if id(p) not in of_critic]
        optimizer.add_param_group({**group, "params": [p for p in everything if id(p) in of_critic]})

    def _critic_features(self, *inputs: Any) -> th.Tensor:
        """
        Compute what the critic's layers see; override it for a policy whose critic sees something else.

        :param inputs: what ``policy.predict_values`` takes
        :return: features, shape (n, features_dim), without a graph
        """
        return critic_features(self.policy, *inputs)

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        super()._update_learning_rate(optimizers)
        if self.critic_learning_rate is not None:
            self._group_critic()
            rate = self._critic_lr_schedule(self._current_progress_remaining)
            self.logger.record("train/critic_learning_rate", rate)
            self.policy.optimizer.param_groups[1]["lr"] = rate

    def _optimizer_order(self) -> list[int]:
        """
        :return: for each parameter of the optimiser, group by group, its number in the policy
        """
        number = {id(parameter): i for i, parameter in enumerate(self.policy.parameters())}
        return [number[id(parameter)] for group in self.policy.optimizer.param_groups for parameter in group["params"]]

    def get_parameters(self) -> dict[str, dict]:
        """
        Give the parameters as SB3 does, the optimiser's in one group.

        :return: state dicts by name
        """
        params = super().get_parameters()
        state = params.get("policy.optimizer")
        if state is not None and len(state["param_groups"]) > 1:
            order = self._optimizer_order()
            params["policy.optimizer"] = {
                "state": {order[i]: value for i, value in state["state"].items()},
                "param_groups": [{**state["param_groups"][0], "params": sorted(order)}],
            }
        return params

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """
        Take parameters as SB3 does, the optimiser's in one group.

        :param load_path_or_dict: a file of a saved model, or what ``get_parameters`` gives
        :param exact_match: whether every parameter of the algorithm must be there
        :param device: device on which the code should run
        """
        params: Any = load_path_or_dict
        if not isinstance(params, dict):
            _, params, _ = load_from_zip_file(params, device=device, load_data=False)
        own, given = self.policy.optimizer.state_dict(), params.get("policy.optimizer")
        if given is not None and len(given.get("param_groups", ())) == 1 < len(own["param_groups"]):
            place = {number: i for i, number in enumerate(self._optimizer_order())}
            state = {place[number]: value for number, value in given["state"].items()}
            params = {**params, "policy.optimizer": {**own, "state": state}}
        super().set_parameters(params, exact_match=exact_match, device=device)
