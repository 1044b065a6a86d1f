"""Finite MDPs as environments, and what a diagnosis of them should find."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.tabular import FiniteMDP, policy_probabilities, random_mdp, torch_gradient, total_variation


class MDPVecEnv(VecEnv):
    """Copies of a finite MDP, stepped all at once; episodes are cut after ``horizon`` steps."""

    def __init__(self, mdp: FiniteMDP, horizon: int, n_envs: int = 8, seed: int = 0) -> None:
        self.mdp, self.horizon, self.rng = mdp, horizon, np.random.default_rng(seed)
        self.seen = mdp.observations.astype(np.float32)
        self.cumulative, self.rho = np.cumsum(mdp.P.toarray(), axis=1), np.cumsum(mdp.rho)
        box = gym.spaces.Box(float(self.seen.min()), float(self.seen.max()), self.seen.shape[1:], np.float32)
        super().__init__(n_envs, box, gym.spaces.Discrete(mdp.n_actions))

    def _start(self) -> np.ndarray:
        return np.minimum(np.searchsorted(self.rho, self.rng.random(self.num_envs), side="right"), self.mdp.n_states - 1)

    def reset(self) -> np.ndarray:
        self.s, self.t = self._start(), np.zeros(self.num_envs, dtype=int)
        return self.seen[self.s]

    def step_async(self, actions: np.ndarray) -> None:
        self.a = actions

    def step_wait(self) -> Any:
        row, u = self.s * self.mdp.n_actions + self.a, self.rng.random(self.num_envs)
        rewards = self.mdp.r[self.s, self.a].astype(np.float32)
        terminated = u >= self.cumulative[row, -1] - 1e-12
        following = np.minimum((self.cumulative[row] <= u[:, None]).sum(axis=1), self.mdp.n_states - 1)
        self.t += 1
        done = terminated | (self.t >= self.horizon)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i] = {"terminal_observation": self.seen[following[i]], "TimeLimit.truncated": not terminated[i]}
        self.s, self.t = np.where(done, self._start(), following), np.where(done, 0, self.t)
        return self.seen[self.s], rewards, done, infos

    def close(self) -> None: ...
    def env_is_wrapped(self, *_: Any, **__: Any) -> list[bool]:
        return [False] * self.num_envs

    def env_method(self, *_: Any, **__: Any) -> list[Any]:
        raise AttributeError("a finite MDP has no methods")

    def get_attr(self, *_: Any, **__: Any) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, *_: Any, **__: Any) -> None: ...


def task(gamma: float, start: str, seed: int = 1) -> FiniteMDP:
    mdp = random_mdp(20, 3, gamma, seed, branching=2)
    rho = np.eye(20)[0] if start == "concentrated" else np.full(20, 1 / 20)
    return FiniteMDP(mdp.P, mdp.r, rho, gamma)


def fresh_policy(env: VecEnv, seed: int, sharpness: float = 50.0) -> ActorCriticPolicy:
    with th.random.fork_rng():
        th.manual_seed(seed)
        policy = PPO("MlpPolicy", env, n_steps=2, batch_size=2, device="cpu").policy
    with th.no_grad():
        policy.action_net.weight.mul_(sharpness)  # SB3's initial policy is all but uniform
    return policy


def exact(mdp: FiniteMDP, policy: ActorCriticPolicy, horizon: int) -> tuple[float, float]:
    """Total variation, and angle of the two gradients in degrees, for episodes of ``horizon`` steps."""
    pi = policy_probabilities(mdp, policy).detach().numpy()
    sampled, discounted = mdp.d_T(pi, horizon), mdp.expected_power(pi, horizon) * mdp.d_T(pi, horizon)
    discounted = np.nan_to_num(discounted) / np.nansum(discounted)
    u, c = (th.cat([g.flatten() for g in torch_gradient(mdp, policy, w)]).numpy() for w in (sampled, discounted))
    cosine = u @ c / np.linalg.norm(u) / np.linalg.norm(c)
    return total_variation(sampled, discounted), float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
