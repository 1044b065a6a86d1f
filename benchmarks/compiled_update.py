"""
Would torch.compile pay? One update of AveragingPPO (2048 samples, batches of 64, 10 epochs) with the lean evaluation of
actions as it is, and compiled.

    python benchmarks/compiled_update.py

prints seconds of processor time: of the first update, which compiles, and the median of later ones.
"""

import statistics
import time
from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common import lean_update

UPDATES = 5


def updates(env: str, compiled: bool) -> list[float]:
    plain = lean_update._evaluate_actions
    cache: dict[int, Any] = {}

    def evaluation(policy: ActorCriticPolicy, formula: Any) -> Any:
        if id(policy) not in cache:
            cache[id(policy)] = th.compile(plain(policy, formula), dynamic=False)
        return cache[id(policy)]

    if compiled:
        lean_update._evaluate_actions = evaluation
    try:
        model = AveragingPPO("MlpPolicy", env, seed=0, device="cpu")
        _, callback = model._setup_learn(10**9)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        times = []
        for _ in range(UPDATES + 1):
            start = time.process_time()
            model.train()
            times.append(time.process_time() - start)
        return times
    finally:
        lean_update._evaluate_actions = plain


if __name__ == "__main__":
    th.set_num_threads(1)
    for env in ("CartPole-v1", "Pendulum-v1"):
        for compiled in (False, True):
            first, *later = updates(env, compiled)
            name = "compiled" if compiled else "as it is"
            print(f"{env} {name}: first update {first:.2f} s, later {statistics.median(later):.2f} s")
