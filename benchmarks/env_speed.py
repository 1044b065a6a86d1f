"""
How fast are the simulated environments, against the bare simulator call each wraps?

    OMP_NUM_THREADS=1 python benchmarks/env_speed.py            # prints the table
    OMP_NUM_THREADS=1 python benchmarks/env_speed.py --write    # and writes it to benchmarks/results/env_speed.md

The environment is what ``gym.make`` gives, time limit and order check included, and resets at the end of its episodes. The
bare call is ``dm_control``'s own ``Environment.step`` on its own task, and for the UR5 ``mj_step`` over the ten time steps of
an action. The two take turns in short rounds, so that whatever else the machine does hits both alike. Three ratios are given,
because on a shared machine no single one can be trusted: of CPU time over all rounds (what others take from us does not
count), the median of the rounds' ratios in wall-clock time, and that of the fastest round of each side.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
from dm_control import suite

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.envs.ur5_reacher import HOME, MODEL_PATH

RESULTS = Path(__file__).parent / "results" / "env_speed.md"
Round = Callable[[], None]


def env_round(env_id: str, actions: np.ndarray) -> Round:
    env = gym.make(env_id)
    env.reset(seed=0)

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return run


def dm_control_round(domain: str, task: str, actions: np.ndarray) -> Round:
    env = suite.load(domain, task, task_kwargs={"random": 0})
    env.reset()
    doubles = actions.astype(np.float64)

    def run() -> None:
        for action in doubles:
            env.step(action)

    return run


def ur5_round(actions: np.ndarray) -> Round:
    model = mujoco.MjModel.from_xml_path(str(MODEL_PATH))
    data = mujoco.MjData(model)
    data.qpos[:] = HOME
    accelerations = actions.astype(np.float64)

    def run() -> None:
        for action in accelerations:
            data.ctrl[1:3] = action
            mujoco.mj_step(model, data, 10)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150, help="rounds of each side")
    parser.add_argument("--steps", type=int, default=200, help="steps a round")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too")
    args = parser.parse_args()

    register_envs()
    actions = np.random.default_rng(0).uniform(-1, 1, (args.steps, 2)).astype(np.float32)
    pairs: dict[str, tuple[str, Round]] = {
        "avgcorr/PointMassEasy-v0": ("dm_control step", dm_control_round("point_mass", "easy", actions)),
        "avgcorr/SparseReacherEasy-v0": ("dm_control step", dm_control_round("reacher", "easy", actions)),
        "avgcorr/SparseReacherHard-v0": ("dm_control step", dm_control_round("reacher", "hard", actions)),
        "avgcorr/UR5Reacher-v0": ("mj_step, 10 time steps", ur5_round(actions)),
    }
    lines = [
        "# Speed of the environments",
        "",
        f"`OMP_NUM_THREADS=1 python benchmarks/env_speed.py --write --rounds {args.rounds} --steps {args.steps}`; "
        f"Python {platform.python_version()}, mujoco {mujoco.__version__}, {platform.machine()}, one process, "
        "on a machine with two cores that others used too.",
        "",
        "Steps per second, medians over rounds that alternate between the two; the target is a ratio of 0.70.",
        "",
        "| environment | bare call | bare, steps/s | environment, steps/s | ratio, CPU | ratio, median | ratio, fastest |",
        "|---|---|---|---|---|---|---|",
    ]
    for env_id, (call, bare) in pairs.items():
        wrapped = env_round(env_id, actions)
        wrapped(), bare()  # warm up
        wall, cpu = np.empty((args.rounds, 2)), np.empty((args.rounds, 2))
        for i in range(args.rounds):
            for j, run in enumerate((bare, wrapped)):
                start, cpu_start = time.perf_counter(), time.process_time()
                run()
                wall[i, j], cpu[i, j] = time.perf_counter() - start, time.process_time() - cpu_start
        speed = args.steps / np.median(wall, axis=0)
        ratios = (cpu[:, 0].sum() / cpu[:, 1].sum(), np.median(wall[:, 0] / wall[:, 1]), wall[:, 0].min() / wall[:, 1].min())
        cells = [f"`{env_id}`", call, *(f"{x:,.0f}" for x in speed), *(f"{x:.2f}" for x in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    print("\n".join(lines))
    if args.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
