"""Batch actor-critic on DotReacher with the paper's settings, watched against the exact distributions of its finite MDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_avgcorr.bac import AveragingBAC
from sb3_avgcorr.common.critic import critic_features
from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.envs.dot_reacher import SIZE, DotReacherEnv
from sb3_avgcorr.tabular import FiniteMDP, policy_probabilities, residual_bias

Array = npt.NDArray[np.float64]
Network = Literal["shared", "separate"]
HORIZON = 500
#: records of a run
POINTS = 40

#: the paper's Table "Hyperparameters for batch actor-critic with our correction on a discrete Reacher"
SETTINGS: dict[str, dict[str, Any]] = {
    "shared": {
        "n_steps": 25,
        "learning_rate": 0.0042,
        "critic_learning_rate": 0.0005,
        "vf_coef": 18.94,
        "correction_scale": 143.0,
        "gamma": 0.99,
        "policy_kwargs": {"net_arch": {"pi": [8, 8], "vf": [64, 64]}},
    },
    # How many passes the separate network is fitted for is not in the paper.
    "separate": {
        "n_steps": 45,
        "learning_rate": 0.0047,
        "critic_learning_rate": 0.0003,
        "vf_coef": 8.9,
        "correction_network": "separate",
        "correction_scale": 133.0,
        "correction_epochs": 5,
        "gamma": 0.8,
        "policy_kwargs": {"net_arch": {"pi": [32, 32], "vf": [32, 32]}},
    },
}


def make(network: Network, seed: int, *, start: Any = "uniform", **kwargs: Any) -> AveragingBAC:
    """
    An untrained agent with the paper's settings.

    :param network: the row of the table
    :param seed: seed of the agent
    :param start: where episodes start; the paper: uniform
    :param kwargs: settings to change
    """
    register_envs()
    env = gym.make("avgcorr/DotReacher-v0", start=start)
    model = AveragingBAC("MlpPolicy", env, seed=seed, device="cpu", **{**SETTINGS[network], **kwargs})
    if model.correction_estimator is not None:
        # As the authors' head, which starts next to 0 and is not set to the mean of γ^t while that is being learned.
        model.correction_estimator.calibration_samples = 0
    return model


def mdp_of(model: AveragingBAC) -> FiniteMDP:
    """
    The exact MDP of the environment the agent learns in, at the agent's γ.

    :param model: the agent
    """
    assert model.env is not None
    env = model.env.envs[0].unwrapped  # type: ignore[attr-defined]
    assert isinstance(env, DotReacherEnv)
    return env.finite_mdp(model.gamma)


def probabilities(model: AveragingBAC, mdp: FiniteMDP) -> Array:
    """
    π(a|s) of every state.

    :param model: the agent
    :param mdp: the MDP
    """
    with th.no_grad():
        return policy_probabilities(mdp, model.policy).numpy()


def estimates(model: AveragingBAC, mdp: FiniteMDP) -> Array:
    """
    ĉ(s) = (1-γ)·T·f(s) of every state: f itself, not divided by any mean, as in the paper.

    :param model: the agent
    :param mdp: the MDP
    """
    assert model.correction_estimator is not None
    features = critic_features(model.policy, model.policy.obs_to_tensor(mdp.observations)[0])
    return (1 - model.gamma) * HORIZON * model.correction_estimator.estimates(features)


def state_of(observations: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """
    Index of the state that each observation (x, y) belongs to.

    :param observations: the observations
    """
    cells = np.rint(5 * observations.reshape(-1, 2)).astype(np.int64) + SIZE // 2
    return cells @ np.array([SIZE, 1])


def discounted_distribution(P: Array, rho: Array, gamma: float, pi: Array) -> Array:
    """
    d_{π,γ} by a dense solve: for so few states, and once for every buffer of 25 samples, the quicker one.

    :param P: transition probabilities, shape (S, A, S)
    :param rho: initial distribution
    :param gamma: discount factor
    :param pi: policy, shape (S, A)
    """
    P_pi = np.einsum("sa,sat->st", pi, P)
    return np.linalg.solve(np.eye(len(rho)) - gamma * P_pi.T, (1 - gamma) * rho)


class Watch(BaseCallback):
    """
    Records, every ``every`` steps, the mean bias ratio of the buffers since, the residual bias, and the returns.

    :param every: steps between records
    :param bias: also compute the exact distributions (costs more than the training itself)
    :param tell: is called with the steps done so far
    """

    def __init__(self, every: int = 1000, bias: bool = True, tell: Callable[[int], None] = lambda steps: None) -> None:
        super().__init__()
        self.every = every
        self.bias = bias
        self.tell = tell
        self.rows: list[dict[str, float]] = []
        self._ratios: list[float] = []
        self._returns: list[float] = []
        self._pending: tuple[Array, npt.NDArray[np.int64]] | None = None

    def _on_training_start(self) -> None:
        assert isinstance(self.model, AveragingBAC)
        self.mdp = mdp_of(self.model)
        self._P = self.mdp.P.toarray().reshape(self.mdp.n_states, self.mdp.n_actions, self.mdp.n_states)
        self._next = self.every

    def _on_rollout_end(self) -> None:
        if self.bias:
            # the distribution under the policy that drew the buffer; its weights are known only after the update
            model: Any = self.model
            d_gamma = discounted_distribution(self._P, self.mdp.rho, model.gamma, probabilities(model, self.mdp))
            self._pending = (d_gamma, state_of(model.rollout_buffer.observations))

    def _on_rollout_start(self) -> None:
        model: Any = self.model
        if self._pending is not None and model.correction_weights is not None:
            d_gamma, states = self._pending
            frequency = np.bincount(states, minlength=len(d_gamma)) / len(states)
            c = (1 - model.gamma) * HORIZON * model.correction_weights.ravel()
            self._ratios.append(bias_ratio(c, states, frequency, d_gamma))
        if self.num_timesteps >= self._next:
            self.tell(self.num_timesteps)
            self._next += self.every
            row: dict[str, float] = {"step": self._next - self.every}
            if self.bias:
                pi = probabilities(model, self.mdp)
                d = self.mdp.d_T(pi, HORIZON)
                row["ratio"] = float(np.mean(self._ratios))
                row["residual"] = residual_bias(estimates(model, self.mdp), d, self.mdp.d_gamma(pi))
                self._ratios = []
            row["return"] = float(np.mean(self._returns)) if self._returns else float("nan")
            self._returns = []
            self.rows.append(row)

    def _on_training_end(self) -> None:
        self._on_rollout_start()  # the last record, which no further rollout would make

    def _on_step(self) -> bool:
        self._returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


def bias_ratio(c: Array, states: npt.NDArray[np.int64], frequency: Array, d_gamma: Array) -> float:
    """
    The ratio of the paper's Appendix E: Σ_i |ĉ(s_i)·d̂(s_i) - d_{π,γ}(s_i)| / Σ_i |d̂(s_i) - d_{π,γ}(s_i)| over a buffer.

    :param c: ĉ of each sample
    :param states: its state
    :param frequency: d̂, share of the buffer in each state
    :param d_gamma: d_{π,γ}
    """
    d, g = frequency[states], d_gamma[states]
    return float(np.abs(c * d - g).sum() / np.abs(d - g).sum())


def measure(
    *,
    seed: int,
    steps: int,
    tell: Callable[[int], None],
    network: Network,
    bias: bool = True,
    every: int = 1000,
    **kwargs: Any,
) -> dict[str, list[float]]:
    """
    Train one agent and watch it.

    :param seed: seed of the agent
    :param steps: environment steps
    :param tell: is called with the steps done so far
    :param network: the row of the table
    :param bias: compare with the exact distributions
    :param every: steps between records
    :param kwargs: settings to change
    :return: columns with one entry a record: step, ratio, residual, return
    """
    watch = Watch(every, bias, tell)
    make(network, seed, **kwargs).learn(steps, callback=watch)
    return {name: [row[name] for row in watch.rows] for name in watch.rows[0]}
