"""Anybody's own algorithm: what is corrected as it is, and what is refused."""

import copy
import inspect
from typing import Any

import pytest
import torch as th
from conftest import ClockEnv, example
from sb3_contrib import ARS
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_avgcorr import AveragingA2C, AveragingCorrection, AveragingPPO

# An update of one's own may do anything with policy, optimiser and buffer


class OldPolicy(example.Reinforce):
    """Keeps the policy before the update, to measure how far it moved."""

    def train(self) -> None:
        old = copy.deepcopy(self.policy)
        super().train()
        with th.no_grad():
            self.policy.action_net.bias.add_(th.tensor([1.0, -1.0]))
            observations, actions = th.zeros(3, *self.observation_space.shape), th.zeros(3, dtype=th.long)
            now, before = (policy.evaluate_actions(observations, actions)[1] for policy in (self.policy, old))
        self.moved = float((now - before).abs().min())


class ExtraParameter(example.Reinforce):
    """Has a parameter beside the policy's in the policy's optimiser."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.extra = th.nn.Parameter(th.zeros(1))
        self.policy.optimizer.add_param_group({"params": [self.extra], "lr": 0.0})
        self.gradients: list[float] = []

    def train(self) -> None:
        for _ in range(2):
            self.policy.optimizer.zero_grad()
            self.extra.sum().backward()
            self.gradients.append(float(self.extra.grad))
        super().train()


class ReadsTheBuffer(example.Reinforce):
    """Takes its advantages from the buffer's array, after SB3 has put it in the order of minibatches."""

    def train(self) -> None:
        batch = next(self.rollout_buffer.get())
        self.shape, self.batch_shape = self.rollout_buffer.advantages.shape, batch.advantages.shape


@pytest.mark.parametrize("fast", [True, False, "always"])
def test_updates_of_ones_own_find_what_sb3_gives_them(fast: Any) -> None:
    def corrected(algorithm: type) -> Any:
        cls = type(f"Averaging{algorithm.__name__}", (AveragingCorrection, algorithm), {})
        env = make_vec_env(ClockEnv, n_envs=2)
        return cls("MlpPolicy", env, n_steps=8, correction="power", fast=fast, device="cpu").learn(32)

    assert corrected(OldPolicy).moved > 1e-3
    assert set(corrected(ExtraParameter).gradients) == {1.0}
    model = corrected(ReadsTheBuffer)
    assert (model.shape, model.batch_shape) == ((16, 1), (16,))


def test_a_mixin_between_the_correction_and_the_algorithm() -> None:
    class Greeter:
        greeting = "hello"

    class Greeting(AveragingCorrection, Greeter, PPO):
        """A class with something in between."""

    model = Greeting("MlpPolicy", ClockEnv(), 3e-4, 16, 16).learn(32)
    assert (model.n_steps, model.greeting) == (16, "hello")


def test_a_users_subclass() -> None:
    class Mine(AveragingPPO):
        """My own."""

        correction_epochs = 2

        def __init__(self, *args: Any, correction_lambda: float = 0.3, mine: int = 1, **kwargs: Any) -> None:
            self.mine = mine
            super().__init__(*args, correction_lambda=correction_lambda, **kwargs)

        def train(self) -> None:
            self.mine += 1
            super().train()

    model = Mine("MlpPolicy", ClockEnv(), n_steps=16, batch_size=16, mine=5).learn(64)
    assert (model.correction_lambda, model.correction_epochs) == (0.3, 2)
    assert model.mine == 5 + 4
    parameters = inspect.signature(Mine).parameters
    assert (parameters["mine"].default, parameters["correction_lambda"].default) == (1, 0.3)
    assert parameters["correction_epochs"].default == 2
    assert Mine.__doc__ is not None
    assert Mine.__doc__.startswith("My own.")


def test_the_critics_learning_rate_is_the_policys_optimisers_alone() -> None:
    model = AveragingPPO("MlpPolicy", ClockEnv(), n_steps=16, batch_size=16, critic_learning_rate=0.5)
    other = th.optim.SGD([th.nn.Parameter(th.zeros(1))], lr=1.0)
    model._setup_learn(16)
    model._update_learning_rate([model.policy.optimizer, other])
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [3e-4, 0.5]
    assert other.param_groups[0]["lr"] == 3e-4


# Classes that cannot be corrected


def corrected(*bases: type) -> type:
    return type(f"Averaging{bases[-1].__name__}", bases, {})


@pytest.mark.parametrize(
    "bases, message",
    [
        ((AveragingCorrection, DQN), "AveragingDQN cannot be corrected: it is off-policy"),
        ((PPO, AveragingCorrection), "Put AveragingCorrection before PPO"),
        ((AveragingCorrection,), "AveragingAveragingCorrection has nothing to correct"),
        ((AveragingCorrection, ARS), "AveragingARS has nothing to correct"),
    ],
)
def test_refuses_bases_that_make_no_sense(bases: tuple[type, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        corrected(*bases)


def test_refuses_arguments_of_the_same_name() -> None:
    class Own(PPO):
        def __init__(self, *args: Any, correction_scale: float = 2.0, fast: bool = False, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    with pytest.raises(TypeError, match=r"Own cannot be corrected.*\(correction_scale, fast\).*Rename them in Own"):
        corrected(AveragingCorrection, Own)


def test_refuses_another_buffer() -> None:
    class OwnBuffer(BaseBuffer):
        def __init__(self, *args: Any, gamma: float, gae_lambda: float, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

        def _get_samples(self, *args: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(TypeError, match="rollout_buffer is a OwnBuffer, not a RolloutBuffer"):
        AveragingA2C("MlpPolicy", "CartPole-v1", rollout_buffer_class=OwnBuffer, device="cpu")  # type: ignore[arg-type]


def test_refuses_a_critic_it_cannot_read() -> None:
    class OwnCritic(ActorCriticPolicy):
        def predict_values(self, obs: Any) -> th.Tensor:
            return th.ones(len(obs), 1)

    with pytest.raises(TypeError, match=r"OwnCritic.predict_values\(\) does not come to .*override _critic_features"):
        AveragingA2C(OwnCritic, "CartPole-v1", device="cpu")
    AveragingA2C(OwnCritic, "CartPole-v1", device="cpu", correction="power").learn(10)  # which does not ask the critic


class NoCritic(BasePolicy):
    """A policy of another make."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, **kwargs: Any) -> None:
        super().__init__(observation_space, action_space)
        self.net = th.nn.Linear(1, 2)
        self.optimizer = th.optim.Adam(self.parameters())
        self.optimizer_kwargs: dict[str, Any] = {}

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        return self.net(observation).argmax(1)


@pytest.mark.parametrize("options", [{}, {"correction": None, "critic_learning_rate": 0.1}])
def test_refuses_a_policy_without_a_critic_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="NoCritic has no predict_values"):
        AveragingA2C(NoCritic, ClockEnv(), device="cpu", **options)  # type: ignore[arg-type]


def test_refuses_a_rollout_without_a_clock() -> None:
    class OwnRollout(A2C):
        def collect_rollouts(self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
            rollout_buffer.reset()
            self.num_timesteps += n_rollout_steps
            return True

    with pytest.raises(TypeError, match=r"its collect_rollouts\(\) does not fill self.rollout_buffer"):
        corrected(AveragingCorrection, OwnRollout)("MlpPolicy", ClockEnv(), device="cpu").learn(5)
