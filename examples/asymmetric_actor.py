"""
An actor that sees less than its critic: AsymmetricActorCriticPolicy, for what is known in simulation and not on the robot.

    python examples/asymmetric_actor.py

The task is avgcorr/LongTailContinuous-v0. The actor sees a cue x and answers with an action a; the best it can do is a = k x.
Five early steps want k = 1, a long tail of late ones k = -1. Only the critic knows how late it is. Which k is best is known
exactly: one for the discounted return, another for the undiscounted one.
"""

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr import AsymmetricActorCriticPolicy, AveragingPPO
from sb3_avgcorr.envs.long_tail import LongTailContinuousEnv

GAMMA = 0.9


def learned_gain(correction: str | None, total_timesteps: int, seed: int = 0) -> float:
    """
    Train, and ask the actor for its answers.

    :param correction: ``"averaging"``, ``"power"`` or None
    :param total_timesteps: environment steps
    :param seed: seed of everything
    :return: half the difference of the actions for the cues 1 and -1
    """
    env = make_vec_env("avgcorr/LongTailContinuous-v0", n_envs=4, seed=seed)
    model = AveragingPPO(
        AsymmetricActorCriticPolicy,
        env,
        correction=correction,
        n_steps=500,
        batch_size=250,
        gamma=GAMMA,
        learning_rate=1e-3,
        policy_kwargs={"actor_keys": ["observation"], "log_std_init": -1.0},
        seed=seed,
        device="cpu",
    )
    model.learn(total_timesteps)
    # Once trained, the actor's own keys are enough: no privileged observation is needed on the robot.
    actions, _ = model.predict({"observation": np.array([[1.0], [-1.0]], dtype=np.float32)}, deterministic=True)
    return float(actions[0, 0] - actions[1, 0]) / 2.0


def main(total_timesteps: int = 30_000) -> dict[str | None, float]:
    """
    Train with and without a correction, and print what was learned beside what is best.

    :param total_timesteps: environment steps of each
    :return: the gain k that each has learned
    """
    task = LongTailContinuousEnv()
    print(f"best for the discounted return (γ = {GAMMA}): k = {task.optimal_gain(GAMMA):.2f}")
    print(f"best for the undiscounted return: k = {task.optimal_gain(1.0):.2f}")
    gains: dict[str | None, float] = {}
    for correction in (None, "averaging"):
        gains[correction] = learned_gain(correction, total_timesteps)
        print(f"learned with correction={correction!r}: k = {gains[correction]:.2f}")
    return gains


if __name__ == "__main__":
    th.set_num_threads(1)
    main()
