"""Every entry of every hyperparameter file: it is what it says it is, and an update can be made with it."""

import argparse
import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th

pytest.importorskip("rl_zoo3")
from rl_zoo3.utils import ALGOS

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.zoo import register
from sb3_avgcorr.zoo.algorithms import ALGORITHMS, UncorrectedPPO
from sb3_avgcorr.zoo.config import ZOO_KEYS, check_entry, hyperparams_folder, own_file, paper_config, read_yaml
from sb3_avgcorr.zoo.manager import ExperimentManager, own_config

FOLDER = hyperparams_folder()
FILES = sorted(FOLDER.glob("*.yml")) + sorted((FOLDER / "paper").glob("*.yml"))
OF_OTHER_VERSIONS = {"Taxi-v3", "Taxi-v4"} - gym.registry.keys()  # a Gymnasium has one of them
ENTRIES = [(path.stem, path, env_id) for path in FILES for env_id in read_yaml(path) if env_id not in OF_OTHER_VERSIONS]
BASES = ("ppo", "a2c", "trpo", "bac")
ENTRIES += [(f"power_{base}", own_file(f"power_{base}"), "default") for base in BASES]
NOT_IN_ANY_FILE = "MountainCar-v0"  # so that it takes the default

MUJOCO = ["HalfCheetah", "Ant", "Walker2d", "Swimmer", "Hopper", "InvertedDoublePendulum", "Reacher"]
AVGCORR = ["PointMassEasy", "SparseReacherEasy", "SparseReacherHard", "UR5Reacher"]
PPO_TASKS = {
    "MountainCarContinuous-v0",
    *(f"{name}-v{version}" for name in MUJOCO for version in (4, 5)),
    *(f"avgcorr/{name}-v0" for name in AVGCORR),
}
BAC_TASKS = {"CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "avgcorr/TwoState-v0", "avgcorr/DotReacher-v0"}

# Small enough to be quick; the schedule, the networks and the wrappers are the entry's own.
SMALL = {
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 2,
    "correction_epochs": 2,
    "critic_epochs": 2,
    "n_critic_updates": 2,
}


def make_manager(algo: str, path: Path | None, env_id: str, tmp_path: Path, **overrides: Any) -> ExperimentManager:
    register()
    if algo == "ppo":
        ALGOS["ppo"] = UncorrectedPPO
    return ExperimentManager(
        argparse.Namespace(),
        algo,
        env_id,
        str(tmp_path),
        eval_freq=-1,
        hyperparams=overrides,
        config=path and str(path),
        verbose=0,
        n_timesteps=1,
        log_interval=-2,
    )


@pytest.fixture(autouse=True)
def _same_algorithms_afterwards():
    before = dict(ALGOS)
    yield
    ALGOS.clear()
    ALGOS.update(before)


def name_of(entry: Any) -> str:
    return f"{entry.parent.name}-{entry.stem}" if isinstance(entry, Path) else entry


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("algo, path, env_id", ENTRIES, ids=name_of)
def test_one_update_with_every_entry(algo: str, path: Path, env_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if "/" in env_id and "TwoState" not in env_id and "DotReacher" not in env_id:
        pytest.importorskip("mujoco")
    entry = read_yaml(path)[env_id]
    known = inspect.signature(UncorrectedPPO if algo == "ppo" else ALGORITHMS[algo].cls).parameters
    small = {key: min(value, entry.get(key, value)) for key, value in SMALL.items() if key in known}
    small["n_envs"] = min(2, entry.get("n_envs", 1))
    manager = make_manager(algo, path, NOT_IN_ANY_FILE if env_id == "default" else env_id, tmp_path, **small)
    model, saved = manager.setup_experiment()
    assert {**entry, **small}.keys() == saved.keys()
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    manager.n_timesteps = 1
    manager.learn(model)
    after = model.policy.state_dict()
    assert all(th.isfinite(tensor).all() for tensor in after.values())
    changed = {name.split(".")[0] for name in after if not th.equal(before[name], after[name])}
    # A first rollout of one step with a one-hot state may leave the rest alone, but some layer of critic or actor moves.
    assert changed
    if hasattr(model, "correction_weights"):
        assert np.isfinite(model.correction_weights).all()
        assert (model.correction_weights >= 0).all()


def test_every_name_has_a_file_with_a_default():
    assert {own_file(algo) for algo in ALGORITHMS} == set(FOLDER.glob("*.yml"))
    assert {path.stem for path in (FOLDER / "paper").glob("*.yml")} == {
        *("ppo", "power_ppo", "averaging_ppo"),
        *("bac", "power_bac", "averaging_bac"),
    }
    for path in FILES:
        assert "default" in read_yaml(path), path


def test_every_task_of_the_paper_is_there_in_both_sets():
    for prefix in ("", "power_", "averaging_"):
        assert read_yaml(paper_config(f"{prefix}ppo")).keys() >= PPO_TASKS
        assert read_yaml(paper_config(f"{prefix}bac")).keys() >= BAC_TASKS
        assert read_yaml(own_file(f"{prefix}bac")).keys() >= BAC_TASKS
        if prefix:
            for base in ("ppo", "a2c", "trpo"):
                assert read_yaml(own_file(f"{prefix}{base}")).keys() >= PPO_TASKS | BAC_TASKS


@pytest.mark.parametrize("base", BASES)
def test_our_settings_differ_in_the_correction_alone(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    entries = read_yaml(own_file(f"averaging_{base}"))
    # a task that only RL Zoo's file knows, too
    for env_id in [*(env_id for env_id in entries if env_id in gym.registry), "LunarLander-v3"]:
        power, averaging = (
            make_manager(f"{prefix}_{base}", None, env_id, tmp_path).read_hyperparameters()[0]
            for prefix in ("power", "averaging")
        )
        assert power == averaging
    if base == "bac":
        without = {env_id: {k: v for k, v in entry.items() if "correction" not in k} for env_id, entry in entries.items()}
        assert read_yaml(own_file("bac")) == without


def test_paper_settings_are_the_corrected_tables():
    # task: actor lr, target KL, critic lr, weight of the correction's loss, scale, critic units, gamma
    tables = {
        "HalfCheetah-v4": (0.0009, 0.01, 0.0026, 4.0, 49, 64, 0.99),
        "Ant-v4": (0.0003, 0.02, 0.0008, 0.66, 113, 128, 0.99),
        "Walker2d-v4": (0.0003, 0.29, 0.0004, 2.82, 34, 256, 0.995),
        "Swimmer-v4": (0.003, 0.01, 0.0027, 2.06, 50, 256, 0.995),
        "MountainCarContinuous-v0": (0.0009, 0.27, 0.0044, 1.64, 104, 128, 0.995),
        "avgcorr/PointMassEasy-v0": (0.0009, 0.06, 0.0028, 3.28, 12, 256, 0.995),
    }
    keys = ("learning_rate", "target_kl", "correction_learning_rate", "correction_coef", "correction_scale")
    entries = read_yaml(paper_config("averaging_ppo"))
    for task, row in tables.items():
        entry = entries[task]
        assert (*(entry[key] for key in keys), entry["policy_kwargs"]["net_arch"]["vf"][0], entry["gamma"]) == row
    baselines = {  # task: (ppo), (power_ppo), each actor lr, target KL, critic lr, gamma
        "HalfCheetah-v4": ((0.0009, 0.01, 0.0047, 0.99), (0.0009, 0.01, 0.0011, 0.99)),
        "Ant-v4": ((0.0009, 0.02, 0.0007, 0.97), (0.0003, 0.02, 0.0008, 0.99)),
        "Walker2d-v4": ((0.0009, 0.01, 0.0023, 0.99), (0.0003, 0.11, 0.0042, 0.995)),
        "Swimmer-v4": ((0.003, 0.01, 0.0027, 0.995), (0.0003, 0.11, 0.0042, 0.995)),
        "MountainCarContinuous-v0": ((0.0003, 0.08, 0.0045, 0.995), (0.0003, 0.22, 0.0047, 0.995)),
        "avgcorr/PointMassEasy-v0": ((0.0003, 0.08, 0.0041, 0.99), (0.0009, 0.2, 0.0007, 0.99)),
    }
    for algo, column in (("ppo", 0), ("power_ppo", 1)):
        entries = read_yaml(paper_config(algo))
        for task, rows in baselines.items():
            entry = entries[task]
            keys = ("learning_rate", "target_kl", "critic_learning_rate", "gamma")
            assert tuple(entry[key] for key in keys) == rows[column]
            assert entry["policy_kwargs"]["net_arch"] == {"pi": [64, 32], "vf": [64, 32]}


def test_the_papers_networks(tmp_path: Path):
    path = paper_config("averaging_ppo")
    model, _ = make_manager("averaging_ppo", path, "MountainCarContinuous-v0", tmp_path).setup_experiment()
    extractor = model.policy.mlp_extractor
    assert [type(layer).__name__ for layer in extractor.policy_net] == ["Linear", "Tanh", "Linear", "Tanh"]
    assert [type(layer).__name__ for layer in extractor.value_net] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert [layer.out_features for layer in extractor.policy_net[::2]] == [64, 32]
    assert [layer.out_features for layer in extractor.value_net[::2]] == [128, 128]
    assert model.policy.log_std.item() == -0.5
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    obs = np.zeros((1, 2), dtype=np.float32)
    assert np.allclose(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_a_task_only_rl_zoo_knows_takes_its_settings():
    assert own_config("power_ppo", "LunarLander-v3") == own_config("averaging_ppo", "LunarLander-v3")
    assert Path(own_config("averaging_ppo", "LunarLander-v3")).parts[-3:] == ("rl_zoo3", "hyperparams", "ppo.yml")
    assert Path(own_config("averaging_ppo", "CartPole-v1")) == FOLDER / "averaging_ppo.yml"
    assert Path(own_config("averaging_ppo", "Blackjack-v1")) == FOLDER / "averaging_ppo.yml"
    assert Path(own_config("bac", "LunarLander-v3")) == FOLDER / "bac.yml"
    assert own_config("sac", "Pendulum-v1") is None


def test_check_entry_names_the_nearest():
    entry = {"policy": "MlpPolicy", "n_timesteps": 1}
    cls = ALGORITHMS["averaging_ppo"].cls
    check_entry("averaging_ppo", cls, {**entry, "correction_lambda": 0.5, "normalize": True})
    with pytest.raises(UserError, match=r"no hyperparameter 'correction_lamda'; did you mean 'correction_lambda'\?"):
        check_entry("averaging_ppo", cls, {**entry, "correction_lamda": 0.5})
    with pytest.raises(UserError, match="use --seed"):
        check_entry("averaging_ppo", cls, {**entry, "seed": 1})
    with pytest.raises(UserError, match="lack 'policy'"):
        check_entry("averaging_ppo", cls, {"n_timesteps": 1})
    assert "n_epochs" not in ZOO_KEYS
    with pytest.raises(UserError, match="no hyperparameter 'n_epochs'"):
        check_entry("averaging_a2c", ALGORITHMS["averaging_a2c"].cls, {**entry, "n_epochs": 3})


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("a: [1", "not valid YAML"),
        ("- 1", "must hold a mapping"),
        ("a: 1", "must hold a mapping"),
        ("a: !!python/object/apply:os.system ['exit 1']", "not valid YAML"),
    ],
)
def test_yaml_is_read_safely(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_yaml(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path / "missing.yml")
