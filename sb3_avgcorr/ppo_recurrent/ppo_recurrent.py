from typing import Any, TypeVar

import numpy as np
import torch as th
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.common.rollout import rollout_rows, take_rows

SelfAveragingRecurrentPPO = TypeVar("SelfAveragingRecurrentPPO", bound="AveragingRecurrentPPO")

LSTMState = tuple[np.ndarray, np.ndarray]


@th.no_grad()
def critic_features(
    policy: RecurrentActorCriticPolicy, obs: PyTorchObs, states: tuple[th.Tensor, th.Tensor], episode_starts: th.Tensor
) -> th.Tensor:
    """
    Compute what the layers of a recurrent critic see: the observations after the features extractor and the memory.

    :param policy: the policy
    :param obs: observations
    :param states: hidden and cell state of the critic's LSTM before them
    :param episode_starts: which of them start an episode
    :return: features, shape (n, lstm_output_dim), without a graph
    """
    features = BaseModel.extract_features(policy, obs, policy.vf_features_extractor)
    lstm = policy.lstm_actor if policy.shared_lstm else policy.lstm_critic
    if lstm is None:
        assert policy.critic is not None
        return policy.critic(features)
    return policy._process_sequence(features, states, episode_starts, lstm)[0]


class AveragingRecurrentPPO(AveragingCorrection, RecurrentPPO):
    """
    PPO with an LSTM and the averaging correction of the discount-factor mismatch. Takes every argument of sb3-contrib's
    RecurrentPPO, in the same order and with the same defaults, and the correction's as keywords. With ``correction=None`` it
    is sb3-contrib's RecurrentPPO, to the bit.

    The correction sees what the critic sees: the output of the critic's LSTM (with ``shared_lstm=True`` of the actor's; with
    ``enable_critic_lstm=False`` there is no memory on that side). The LSTM itself is left to PPO's update. Each sample is
    evaluated from the state that the LSTM was in when it was collected, so ``correction_order="after"`` and
    ``critic_epochs`` combine new LSTM weights with a state of the old ones, as PPO does at the start of each sequence.
    """

    policy: RecurrentActorCriticPolicy

    def _critic_features(self, *inputs: Any) -> th.Tensor:
        return critic_features(self.policy, *inputs)

    def _critic_inputs(self) -> tuple[Any, ...]:
        buffer: Any = self.rollout_buffer
        states = self._states(buffer.hidden_states_vf, buffer.cell_states_vf)
        return (*super()._critic_inputs(), states, buffer.to_torch(buffer.episode_starts.reshape(-1)))

    def _states(self, hidden: np.ndarray, cell: np.ndarray) -> tuple[th.Tensor, th.Tensor]:
        """The memory before each sample of the rollout, where each sample is a sequence of length 1."""

        def rows(array: np.ndarray) -> th.Tensor:
            # (n_steps, n_layers, n_envs, dim) -> (n_layers, n_steps * n_envs, dim)
            array = array.swapaxes(0, 1)
            return self.rollout_buffer.to_torch(array.reshape(len(array), -1, array.shape[-1]))

        return rows(hidden), rows(cell)

    def _last_values(self) -> np.ndarray:
        obs: Any = self.policy.obs_to_tensor(self._last_obs)[0]  # type: ignore[arg-type]
        states: Any = self._last_lstm_states
        starts = th.as_tensor(self._last_episode_starts, dtype=th.float32, device=self.device)
        with th.no_grad():
            return self.policy.predict_values(obs, states.vf, starts).cpu().numpy().flatten()

    def _log_prob(self, rows: np.ndarray) -> th.Tensor:
        buffer: Any = self.rollout_buffer
        obs, actions = rollout_rows(buffer, self.action_space, rows)
        of_actor = self._states(buffer.hidden_states_pi, buffer.cell_states_pi)
        _, of_critic, starts = self._critic_inputs()
        hidden, memory, starts = take_rows((of_actor, of_critic, starts), rows)  # type: ignore[arg-type]
        return self.policy.evaluate_actions(obs, actions, RNNStates(hidden, memory), starts)[1]

    def predict_correction(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: LSTMState | None = None,
        episode_start: np.ndarray | None = None,
    ) -> np.ndarray:
        """
        The learned correction ĉ(s), an estimate of d_{π,γ}(s) / d_π(s) with mean 1 over the last rollout, where the state
        s is what the critic's memory holds.

        :param observation: a batch of observations, as for ``predict`` (normalised, if the environment is)
        :param state: the **critic's** LSTM state before these observations (:meth:`next_critic_state`), hidden and cell, each
            of shape (n_lstm_layers, n, lstm_hidden_size). ``predict`` gives the actor's, which is the same one only with
            ``shared_lstm=True``. ``None``: nothing remembered, as at the start of an episode
        :param episode_start: which of the observations start an episode, where the state is forgotten; ``None``: none
        :return: ĉ(s) of each, shape (n,); all 1 where there is nothing to correct or nothing was learned yet
        """
        return self._predict_ratio(*self._memory_inputs(observation, state, episode_start))

    @th.no_grad()
    def next_critic_state(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: LSTMState | None = None,
        episode_start: np.ndarray | None = None,
    ) -> LSTMState:
        """
        What the critic's LSTM remembers after the observations: the ``state`` of :meth:`predict_correction` for the next ones.

        :param observation: a batch of observations
        :param state: the critic's LSTM state before them; ``None``: nothing remembered
        :param episode_start: which of the observations start an episode; ``None``: none
        :return: hidden and cell state, each of shape (n_lstm_layers, n, lstm_hidden_size)
        """
        policy = self.policy
        obs, states, starts = self._memory_inputs(observation, state, episode_start)
        lstm = policy.lstm_actor if policy.shared_lstm else policy.lstm_critic
        if lstm is not None:
            features: Any = policy.extract_features(obs)
            vf_features = features if policy.share_features_extractor else features[1]
            _, states = policy._process_sequence(vf_features, states, starts, lstm)  # type: ignore[assignment]
        return states[0].cpu().numpy(), states[1].cpu().numpy()

    def _memory_inputs(
        self, observation: np.ndarray | dict[str, np.ndarray], state: LSTMState | None, episode_start: np.ndarray | None
    ) -> tuple[Any, tuple[th.Tensor, th.Tensor], th.Tensor]:
        """What ``policy.predict_values`` takes, with the same defaults as in the policy's ``predict``."""
        self.policy.set_training_mode(False)
        obs, _ = self.policy.obs_to_tensor(observation)
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        layers, _, size = self.policy.lstm_hidden_state_shape
        shape = (layers, n, size)
        hidden, cell = (np.zeros(shape), np.zeros(shape)) if state is None else state
        if np.shape(hidden) != shape or np.shape(cell) != shape:
            raise ValueError(
                f"state has the shapes {np.shape(hidden)} and {np.shape(cell)}: for {n} observations its two arrays, hidden "
                f"and cell state of the critic's LSTM, must be of shape {shape}."
            )
        starts = np.zeros(n) if episode_start is None else np.asarray(episode_start).reshape(n)

        def tensor(array: np.ndarray) -> th.Tensor:
            return th.as_tensor(array, dtype=th.float32, device=self.device)

        return obs, (tensor(hidden), tensor(cell)), tensor(starts)

    def learn(
        self: SelfAveragingRecurrentPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "AveragingRecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAveragingRecurrentPPO:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
