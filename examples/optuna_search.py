"""
Search hyperparameters of the correction with Optuna, for the discounted return.

    python examples/optuna_search.py

The search space is the one that RL Zoo uses (``sb3-avgcorr train -optimize``, which also searches PPO's own hyperparameters
and can be spread over machines); here only the correction's options are drawn. Needs ``pip install "sb3-avgcorr[zoo]"``.
"""

import numpy as np
import optuna
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr import AsymmetricActorCriticPolicy, AveragingPPO
from sb3_avgcorr.zoo.search import AVERAGING, convert_correction, sample_correction

TASK, LENGTH, GAMMA = "avgcorr/LongTail-v0", 200, 0.9


def discounted_return(model: AveragingPPO, episodes: int = 50) -> float:
    """
    Roll the trained policy out, as many episodes side by side as are asked for.

    :param model: the model
    :param episodes: number of episodes
    :return: the mean of their discounted returns
    """
    env = make_vec_env(TASK, n_envs=episodes, seed=1)
    observations, total = env.reset(), np.zeros(episodes)
    for t in range(LENGTH):  # every episode of this task has the same length
        observations, rewards, _, _ = env.step(model.predict(observations)[0])
        total += GAMMA**t * rewards
    return float(total.mean())


def search(n_trials: int, total_timesteps: int) -> optuna.Study:
    """
    Train once for every trial.

    :param n_trials: number of trials
    :param total_timesteps: environment steps of a trial
    :return: Optuna's study
    """

    def objective(trial: optuna.Trial) -> float:
        options = convert_correction(sample_correction(trial, AVERAGING))
        model = AveragingPPO(
            AsymmetricActorCriticPolicy,
            make_vec_env(TASK, n_envs=4, seed=0),
            n_steps=500,
            batch_size=250,
            gamma=GAMMA,
            learning_rate=1e-3,
            policy_kwargs={"actor_keys": ["observation"]},
            seed=0,
            device="cpu",
            **options,
        )
        return discounted_return(model.learn(total_timesteps))

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=n_trials)
    return study


def main(n_trials: int = 10, total_timesteps: int = 10_000) -> optuna.Study:
    """
    Search, and print the best trial.

    :param n_trials: number of trials
    :param total_timesteps: environment steps of a trial
    :return: Optuna's study
    """
    study = search(n_trials, total_timesteps)
    print(f"Best of {n_trials} trials: discounted return {study.best_value:.2f}")
    for name, value in study.best_params.items():
        print(f"  {name}: {value}")
    return study


if __name__ == "__main__":
    th.set_num_threads(1)
    main()
