"""What a diagnosis reads: a rollout of SB3's own making, of any on-policy class."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_avgcorr.common.clock import episode_steps
from sb3_avgcorr.common.critic import critic_features
from sb3_avgcorr.common.rollout import flat_observations, rollout_rows, take_rows

#: observations, memories and features of a diagnosis take no more than about this
MAX_BYTES = 2**29
PIECE = 256


class Source(NamedTuple):
    """A policy, and what its algorithm would do with it."""

    policy: Any
    name: str
    gamma: float
    gae_lambda: float
    trained: bool  # whether its critic knows something
    rollout: int = 2048  # steps of the rollouts it is trained on; SB3's default for PPO where no algorithm is known


def source_of(policy: Any, env: VecEnv) -> Source:
    """
    Find the policy to diagnose.

    :param policy: an on-policy model, an actor-critic policy, the file of a saved model, or None for a fresh policy
    :param env: the environment, as SB3 wraps it
    :return: the policy
    """
    if policy is None:
        space = env.observation_space
        alias = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if is_image_space(space) else "MlpPolicy"
        return Source(PPO(alias, env, n_steps=2, batch_size=2).policy, f"fresh {alias}, nearly random", 0.99, 0.95, False)
    if isinstance(policy, BaseAlgorithm):
        if not isinstance(policy, OnPolicyAlgorithm):
            raise ValueError(f"policy={type(policy).__name__} is off-policy: the mismatch is one of on-policy algorithms.")
        rollout = policy.n_steps * policy.n_envs
        return Source(policy.policy, type(policy).__name__, policy.gamma, policy.gae_lambda, policy.num_timesteps > 0, rollout)
    if isinstance(policy, BasePolicy):
        source = Source(policy, type(policy).__name__, 0.99, 0.95, False)
    else:
        if not any(Path(f"{policy}{suffix}").is_file() for suffix in ("", ".zip")):
            raise FileNotFoundError(f"policy={str(policy)!r}: there is no such file.")
        data, parameters, _ = load_from_zip_file(policy, device="cpu")
        if data is None or "policy_class" not in data or "policy" not in parameters:
            raise ValueError(f"policy={str(policy)!r} is not a model saved by SB3.")
        arguments = {key: value for key, value in data["policy_kwargs"].items() if key != "device"}
        if data.get("use_sde", False):
            arguments["use_sde"] = True
        loaded = data["policy_class"](data["observation_space"], data["action_space"], lambda _: 0.0, **arguments)
        if hasattr(loaded, "evaluate_actions"):
            loaded.load_state_dict(parameters["policy"])
        name = f"{policy} after {data['num_timesteps']} steps"
        rollout = data.get("n_steps", 2048) * data.get("n_envs", 1)
        source = Source(loaded, name, data["gamma"], data.get("gae_lambda", 0.95), data["num_timesteps"] > 0, rollout)
    if not hasattr(source.policy, "evaluate_actions"):
        raise ValueError(
            f"policy is a {type(source.policy).__name__}: only actor-critic (on-policy) policies have a mismatch."
        )
    return source


class Recorder(BaseCallback):
    """Keeps what SB3's buffer does not: rewards as they came, and the observations that episodes were cut at."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[np.ndarray] = []
        self.cuts: list[tuple[int, int, Any]] = []  # (step, environment, observation)
        self.ended = 0

    def _on_step(self) -> bool:
        for index in np.flatnonzero(self.locals["dones"]):
            self.ended += 1
            info = self.locals["infos"][index]
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                self.cuts.append((len(self.rewards), int(index), info["terminal_observation"]))
        self.rewards.append(np.array(self.locals["rewards"], dtype=np.float32))
        return True


class RolloutView:
    """
    A complete rollout in a model's buffer, before SB3 rearranges it. Rows are (step, environment).

    :param model: the model
    :param first_steps: step inside the episode of each environment's first row, if no episode starts there
    """

    def __init__(self, model: OnPolicyAlgorithm, first_steps: np.ndarray) -> None:
        self.model, self.policy = model, model.policy
        self.buffer: Any = model.rollout_buffer
        self.steps = episode_steps(self.buffer.episode_starts, first_steps)
        self.n = self.steps.size
        self.recurrent = hasattr(self.policy, "lstm_actor")
        self.masked = takes_masks(self.policy)
        #: what the critic's layers see: a function of the policy and of what its ``predict_values`` takes
        self.critic_features: Any = critic_features
        if self.recurrent:
            from sb3_avgcorr.ppo_recurrent.ppo_recurrent import critic_features as recurrent_features  # needs sb3-contrib

            self.critic_features = recurrent_features

    def _memory(self, rows: np.ndarray, side: str) -> tuple[th.Tensor, th.Tensor]:
        step, env = np.divmod(rows, self.steps.shape[1])

        def states(array: np.ndarray) -> th.Tensor:  # (step, layer, environment, unit) -> (layer, row, unit)
            return self.buffer.to_torch(array[step, :, env].swapaxes(0, 1))

        return states(getattr(self.buffer, f"hidden_states_{side}")), states(getattr(self.buffer, f"cell_states_{side}"))

    def _starts(self, rows: np.ndarray) -> th.Tensor:
        return self.buffer.to_torch(self.buffer.episode_starts.reshape(-1)[rows])

    def features(self) -> np.ndarray:
        """
        Read the critic's features of the rollout.

        :return: what the critic's layers see, one row a sample
        """
        out = []
        for rows in pieces(np.arange(self.n)):
            memory = (self._memory(rows, "vf"), self._starts(rows)) if self.recurrent else ()
            (observations,) = take_rows((flat_observations(self.buffer),), rows)
            out.append(self.critic_features(self.policy, observations, *memory).cpu().numpy())
        return np.concatenate(out).reshape(self.n, -1)

    def features_of(self, observation: Any) -> np.ndarray:
        """
        Read the critic's features of other observations.

        :param observation: a batch of observations, each the first of an episode if the policy has a memory
        :return: what the critic's layers see
        """
        keyed = isinstance(observation, dict)
        n = len(next(iter(observation.values())) if keyed else observation)
        out = []
        for rows in pieces(np.arange(n)):
            part = {key: x[rows] for key, x in observation.items()} if keyed else observation[rows]
            obs, _ = self.policy.obs_to_tensor(part)
            memory: tuple[Any, ...] = ()
            if self.recurrent:
                lstm: Any = self.policy.lstm_actor
                zeros = th.zeros(lstm.num_layers, len(rows), lstm.hidden_size, device=self.policy.device)
                memory = ((zeros, zeros), th.ones(len(rows), device=self.policy.device))
            out.append(self.critic_features(self.policy, obs, *memory).cpu().numpy().reshape(len(rows), -1))
        return np.concatenate(out)

    def log_prob(self, rows: np.ndarray) -> th.Tensor:
        """
        Compute log π(a|s) of some samples.

        :param rows: numbers of samples
        :return: log π(a|s) of each, differentiable; a memory is taken as it was, without a gradient through earlier steps
        """
        observations, actions = rollout_rows(self.buffer, self.model.action_space, rows)
        policy: Any = self.policy
        if self.recurrent:
            from sb3_contrib.common.recurrent.type_aliases import RNNStates

            states = RNNStates(self._memory(rows, "pi"), self._memory(rows, "vf"))
            return policy.evaluate_actions(observations, actions, states, self._starts(rows))[1]
        masks = {"action_masks": self.buffer.action_masks.reshape(self.n, -1)[rows]} if self.masked else {}
        return policy.evaluate_actions(observations, actions, **masks)[1]


def pieces(items: Any) -> list[Any]:
    """
    Cut a sequence into pieces.

    :param items: a list or an array
    :return: it in pieces small enough for images to go through a network
    """
    return [items[start : start + PIECE] for start in range(0, len(items), PIECE)]


def takes_masks(policy: Any) -> bool:
    """
    Tell whether a policy takes action masks, as sb3-contrib's maskable ones do.

    :param policy: a policy
    :return: whether it does
    """
    return "action_masks" in inspect.signature(policy.forward).parameters


def carrier(source: Source, env: VecEnv, n_steps: int, gamma: float) -> OnPolicyAlgorithm:
    """
    Make an algorithm of SB3's or sb3-contrib's that rolls the policy out. It is never trained.

    :param source: the policy
    :param env: the environment
    :param n_steps: steps in each of its copies
    :param gamma: discount factor
    :return: the algorithm, around the very same policy
    """
    algorithm: Any = PPO
    if hasattr(source.policy, "lstm_actor"):
        from sb3_contrib import RecurrentPPO as algorithm
    elif takes_masks(source.policy):
        from sb3_contrib import MaskablePPO as algorithm

    def existing(*_: Any, **__: Any) -> Any:
        return source.policy

    arguments: dict[str, Any] = {"n_steps": n_steps, "batch_size": n_steps * env.num_envs, "gamma": gamma}
    if getattr(source.policy, "use_sde", False):
        arguments["use_sde"] = True
    return algorithm(existing, env, gae_lambda=source.gae_lambda, device=source.policy.device, **arguments)


def collect(model: OnPolicyAlgorithm, n_steps: int) -> Recorder:
    """
    Roll out.

    :param model: what :func:`carrier` made
    :param n_steps: steps in each copy of the environment
    :return: what its buffer does not hold
    """
    recorder, arguments = Recorder(), {}
    _, callback = model._setup_learn(n_steps, recorder)
    assert model.env is not None
    if takes_masks(model.policy):
        from sb3_contrib.common.maskable.utils import is_masking_supported

        arguments["use_masking"] = is_masking_supported(model.env)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_steps, **arguments)
    return recorder


@contextmanager
def undisturbed(env: VecEnv, policy: Any) -> Iterator[None]:
    """
    Leave no trace: running statistics stand still meanwhile, and the policy's mode is put back.

    :param env: the environment
    :param policy: the policy
    """
    normalize = unwrap_vec_normalize(env)
    training, mode = normalize is not None and normalize.training, policy.training
    if normalize is not None:
        normalize.training = False
    policy.set_training_mode(False)
    try:
        yield
    finally:
        policy.set_training_mode(mode)
        if normalize is not None:
            normalize.training = training


def fitting_steps(source: Source, env: VecEnv, n_steps: int) -> int:
    """
    Limit the steps to what fits into memory.

    :param source: the policy
    :param env: the environment
    :param n_steps: steps that were asked for
    :return: steps in each copy of the environment, so many that their observations fit into memory
    """
    check_for_correct_spaces(env, source.policy.observation_space, source.policy.action_space)
    row = observation_bytes(env) + 8 * source.policy.features_dim
    lstm = getattr(source.policy, "lstm_actor", None)
    if lstm is not None:
        row += 16 * lstm.num_layers * lstm.hidden_size + 8 * lstm.hidden_size
    return max(2, min(n_steps, MAX_BYTES // row) // env.num_envs)


def observation_bytes(env: VecEnv) -> int:
    """
    Measure an observation.

    :param env: the environment
    :return: bytes of one observation
    """
    space: Any = env.observation_space
    parts: list[Any] = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    return sum(max(1, int(np.prod(part.shape))) * part.dtype.itemsize for part in parts)
