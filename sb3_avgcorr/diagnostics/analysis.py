"""Does a task suffer from the discount-factor mismatch? This module rolls a policy out and measures it."""

import copy
import os
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_avgcorr.common.correction import Shrinkage, ratio
from sb3_avgcorr.diagnostics.distances import Columns, classifier_distance, histogram_distance
from sb3_avgcorr.diagnostics.estimates import Estimate, blocks_of, fitted_advantages, out_of_sample_estimates
from sb3_avgcorr.diagnostics.gradient import block_gradients, compare_gradients
from sb3_avgcorr.diagnostics.report import DiagnosisReport
from sb3_avgcorr.diagnostics.rollout import (
    MAX_BYTES,
    RolloutView,
    carrier,
    collect,
    fitting_steps,
    observation_bytes,
    pieces,
    source_of,
    undisturbed,
)
from sb3_avgcorr.diagnostics.strength import choose_strength
from sb3_avgcorr.diagnostics.verdict import time_is_hidden

#: samples that a report keeps for its plots
PLOTTED = 5000
FEW_EPISODES = 10
#: λ of the advantages where the value function is fitted here
FITTED_LAMBDA = 0.95


class Starts:
    """
    Initial observations as the environment gives them, whatever a VecNormalize makes of them as training goes on.

    :param env: the environment that the policy acts in
    """

    def __init__(self, env: VecEnv) -> None:
        self.normalize = env if isinstance(env, VecNormalize) and env.norm_obs else None
        self.space = env.observation_space if self.normalize is None else self.normalize.venv.observation_space
        self.observations: list[Any] = []

    def raw(self, observations: Any) -> Any:
        """
        Undo the normalisation.

        :param observations: what the policy sees
        :return: what the environment gave
        """
        return observations if self.normalize is None else self.normalize.unnormalize_obs(observations)

    def batch(self) -> Any:
        """
        Give the observations as the environment gave them.

        :return: all of them as one batch
        """
        if isinstance(self.observations[0], dict):
            return {key: np.concatenate([obs[key] for obs in self.observations]) for key in self.observations[0]}
        return np.concatenate(self.observations)

    def seen(self) -> Any:
        """
        Give the observations as the policy sees them now.

        :return: all of them as one batch
        """
        return self.batch() if self.normalize is None else self.normalize.normalize_obs(self.batch())

    def reset(self, env: VecEnv, count: int) -> "Starts":
        """
        Collect initial observations by resets.

        :param env: the environment, or another like it
        :param count: number of resets
        :return: this object, with the observations they gave
        """
        for _ in range(-(-count // env.num_envs)):
            observation: Any = env.reset()
            if isinstance(env, VecNormalize):
                observation = env.get_original_obs()
            self.observations.append(copy.deepcopy(observation))
        return self


def analyse(
    view: RolloutView,
    starts: Starts,
    gamma: float,
    rng: np.random.Generator,
    advantages: np.ndarray | None,
    *,
    rewards: np.ndarray | None = None,
    cuts: list[tuple[int, int, Any]] | None = None,
    training_rollout: int | None = None,
) -> DiagnosisReport:
    """
    Take all measures on one rollout.

    :param view: the rollout
    :param starts: initial observations
    :param gamma: discount factor
    :param rng: random generator
    :param advantages: advantages, shape (n_steps, n_envs); None: by a value function fitted here
    :param rewards: rewards to fit it to
    :param cuts: where episodes were cut, not terminated: (step, environment, observation)
    :param training_rollout: steps of the rollouts that the policy is trained on; None: this is one of them
    :return: the report, without a policy's and an environment's name
    """
    steps, n = view.steps, view.n
    blocks = blocks_of(steps, rng)
    features, first = view.features(), view.features_of(starts.seen())
    mean, std = features.mean(axis=0), features.std(axis=0)
    cut_features = [view.features_of(stacked(piece)) for piece in pieces([obs for *_, obs in cuts or []])]

    def scaled(x: np.ndarray) -> np.ndarray:
        return np.clip((x - mean) / np.where(std > 1e-6, std, 1.0), -10.0, 10.0).astype(np.float32)

    inputs = scaled(features)
    powers = np.power(gamma, steps)
    v = ratio(powers).ravel() - 1.0
    if np.ptp(powers) > 0.0:
        raw = ratio(out_of_sample_estimates(inputs, steps, gamma, blocks, rng))
    else:
        raw = np.ones(n)  # no discount, or episodes of one step
    shrinkage = Shrinkage(memory=np.inf)
    shrinkage.update(raw.reshape(steps.shape), ratio(powers), steps)
    k = shrinkage.factor if np.ptp(raw) > 0.0 else 0.0
    weights = 1.0 + k * (raw - 1.0)
    one = blocks.sums(np.ones(n))

    # The set of states that count for more is chosen by networks that did not see the sample; so its probability under the
    # two distributions can be counted, and the difference errs to the low side only.
    heavy = raw > 1.0
    variation = blocks.estimate(
        lambda inside, power_inside, power, count: power_inside / power - inside / count,
        blocks.sums(heavy),
        blocks.sums(heavy * powers.ravel()),
        blocks.sums(powers),
        one,
        low=0.0,
        high=1.0,
    )
    explained = blocks.estimate(
        lambda error, total: 1.0 - error / np.maximum(total, 1e-12),
        blocks.sums((v - (weights - 1.0)) ** 2),
        blocks.sums(v**2),
        low=0.0,
        high=1.0,
    )
    if k == 0.0:
        explained = Estimate(0.0, 0.0, explained.high if explained < 1.0 else 0.0)
    size = blocks.estimate(
        lambda a, b, c: a**2 / (b * c), blocks.sums(weights), blocks.sums(weights**2), one, low=0.0, high=1.0
    )

    if advantages is None:
        assert rewards is not None
        ends = np.array([(step, env) for step, env, _ in cuts or []], dtype=np.int64).reshape(-1, 2)
        rows = np.concatenate([inputs, *map(scaled, cut_features)])
        starts_here = view.buffer.episode_starts
        advantages = fitted_advantages(rows, rewards, starts_here, ends, gamma, FITTED_LAMBDA, blocks, rng)
    parameters = [p for p in view.policy.parameters() if p.requires_grad]
    a = advantages.ravel().astype(np.float64)
    a = a / (a.std() + 1e-12)
    gradients = block_gradients(view.log_prob, parameters, [a, (raw - 1.0) * a, v * a], blocks)
    slope = (blocks.sums((raw - 1.0) * v), blocks.sums((raw - 1.0) ** 2))
    gradient = compare_gradients(gradients, slope, k, blocks)
    before = float(getattr(view.policy, "actor_sees_less", False))
    strength = choose_strength(gradients[0], gradients[0] + k * gradients[1], one, training_rollout or n, before)

    observations: Any = view.buffer.observations
    flat = (
        {key: x.reshape(n, *x.shape[2:]) for key, x in observations.items()}
        if isinstance(observations, dict)
        else observations.reshape(n, *observations.shape[2:])
    )
    plotted = rng.permutation(n)[:PLOTTED]
    return DiagnosisReport(
        distance=histogram_distance(
            Columns(starts.batch(), starts.space), Columns(starts.raw(flat), starts.space), blocks, rng
        ),
        classifier_distance=classifier_distance(scaled(first), inputs, blocks, rng),
        total_variation=variation,
        explained_variance=explained,
        effective_sample_size=size,
        gradient_angle=gradient.angle,
        gradient=gradient,
        strength=strength,
        weight_quantiles=tuple(float(q) for q in np.quantile(weights, [0.0, 0.05, 0.5, 0.95, 1.0])),
        gamma=gamma,
        n_steps=n,
        n_episodes=blocks.n_episodes,
        steps=steps.ravel()[plotted],
        weights=weights[plotted],
        features=features[plotted],
    )


def stacked(observations: list[Any]) -> Any:
    """
    Stack observations.

    :param observations: single observations
    :return: the batch of them
    """
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)


def diagnose(
    env: str | gym.Env[Any, Any] | VecEnv,
    policy: OnPolicyAlgorithm | BasePolicy | str | os.PathLike[str] | None = None,
    gamma: float | None = None,
    *,
    n_steps: int = 20_000,
    n_envs: int = 8,
    n_resets: int = 5000,
    critic: Literal["own", "fitted"] | None = None,
    seed: int | None = 0,
    env_kwargs: dict[str, Any] | None = None,
) -> DiagnosisReport:
    """
    Roll a policy out and measure what the discount-factor mismatch does to its gradient.

    Nothing is trained, and nothing is changed but the state of the environment.

    :param env: id of an environment, an environment, or a VecEnv (with the VecNormalize the policy was trained with)
    :param policy: a model of any on-policy class, an actor-critic policy, or the file of a saved model; None: a fresh one,
        which acts nearly at random
    :param gamma: discount factor; None: the model's, else 0.99
    :param n_steps: steps to roll out, in all copies of the environment together
    :param n_envs: number of copies, if ``env`` is an id
    :param n_resets: resets for the initial distribution
    :param critic: advantages by the policy's ``"own"`` critic, or by one ``"fitted"`` here; None: the model's own if it was
        trained
    :param seed: seed of everything that is random; None: none
    :param env_kwargs: arguments of the environment, if ``env`` is an id
    :return: the report
    """
    if gamma is not None and not 0.0 < gamma <= 1.0:
        raise ValueError(f"gamma={gamma!r} makes no sense: it must be in (0, 1].")
    for name, value, least in ("n_steps", n_steps, 100), ("n_envs", n_envs, 1), ("n_resets", n_resets, 10):
        if value < least:
            raise ValueError(f"{name}={value!r} is too few: it must be at least {least}.")
    if critic not in ("own", "fitted", None):
        raise ValueError(f"critic={critic!r} makes no sense: it must be 'own', 'fitted' or None.")
    made = isinstance(env, str)
    with th.random.fork_rng():
        if seed is not None:
            th.manual_seed(seed)
        given: Any = make_vec_env(env, n_envs, seed=seed, env_kwargs=env_kwargs) if isinstance(env, str) else env
        wrapped = BaseAlgorithm._wrap_env(given, verbose=0, monitor_wrapper=False)
        try:
            source = source_of(policy, wrapped)
            with undisturbed(wrapped, source.policy):
                if seed is not None:
                    wrapped.seed(seed)
                return _diagnose(env, wrapped, source, gamma, n_steps, n_resets, critic, np.random.default_rng(seed))
        finally:
            if made:
                wrapped.close()


def _diagnose(
    env: Any, wrapped: VecEnv, source: Any, gamma: float | None, n_steps: int, n_resets: int, critic: Any, rng: Any
) -> DiagnosisReport:
    gamma = source.gamma if gamma is None else float(gamma)
    horizon = fitting_steps(source, wrapped, n_steps)
    model = carrier(source, wrapped, horizon, gamma)
    recorder = collect(model, horizon)
    cuts, dones = recorder.cuts, np.asarray(recorder.locals["dones"], dtype=bool)
    # where the budget cuts an episode its value goes on, too
    last: Any = recorder.locals["new_obs"]
    for i in np.flatnonzero(~dones):
        cuts.append((horizon - 1, int(i), {k: x[i] for k, x in last.items()} if isinstance(last, dict) else last[i]))
    view = RolloutView(model, np.zeros(wrapped.num_envs, dtype=np.int64))
    starts = Starts(wrapped).reset(wrapped, min(n_resets, MAX_BYTES // (4 * observation_bytes(wrapped))))
    own = critic == "own" or (critic is None and source.trained)
    report = analyse(
        view,
        starts,
        gamma,
        rng,
        model.rollout_buffer.advantages if own else None,
        rewards=np.stack(recorder.rewards),
        cuts=cuts,
        training_rollout=source.rollout,
    )
    report.env, report.policy = _name(env), source.name
    report.grid = _grid(wrapped)
    if horizon * wrapped.num_envs < 0.9 * n_steps:
        report.notes.append(f"Rolled out {view.n} of {n_steps} steps: more observations do not fit into memory.")
    if recorder.ended == 0:
        report.notes.append(
            f"No episode ended within {horizon} steps, so this is about the first {horizon} steps of a task that goes on. If "
            "it never ends, training sees its start once, the discounted distribution is all about the steps after that, and "
            "no weighting of later samples brings them back."
        )
    elif recorder.ended < 0.5 * report.n_episodes:
        report.notes.append("Most episodes were cut by the budget of steps: late states are missing. Use more steps.")
    if report.n_episodes < FEW_EPISODES:
        report.notes.append(f"Only {report.n_episodes} episodes: the intervals are rough. Use more steps or copies.")
    angle, power = report.gradient_angle, report.gradient.power_angle
    if time_is_hidden(angle, report.gradient):
        report.notes.append(
            f"With γ^t itself as the weight the angle is {power:.1f}° ({power.low:.1f}° to {power.high:.1f}°), with ĉ(s) it "
            f"is {angle:.1f}°: what the critic sees does not tell the time, and the averaging correction can know no more. "
            "correction='power' does."
        )
    if view.recurrent:
        report.notes.append("Recurrent policy: its memory is taken as it was, without gradients through earlier steps.")
    return report


def _name(env: Any) -> str:
    if isinstance(env, str):
        return env
    try:
        spec = env.get_attr("spec")[0] if isinstance(env, VecEnv) else getattr(env, "spec", None)
    except (AttributeError, NotImplementedError):
        spec = None
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def _grid(env: VecEnv) -> tuple[int, int] | None:
    """Rows and columns of a grid world whose observation is the number of the cell, as FrozenLake's or CliffWalking's."""
    space = env.observation_space
    if not isinstance(space, gym.spaces.Discrete):
        return None
    try:
        inner: Any = env.get_attr("unwrapped")[0]
    except (AttributeError, NotImplementedError):
        return None
    shape = np.shape(getattr(inner, "desc", ())) or getattr(inner, "shape", ())
    return (int(shape[0]), int(shape[1])) if len(shape) == 2 and np.prod(shape) == space.n else None
