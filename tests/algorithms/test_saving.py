"""Save, load, go on (invariant 5); and files that plain SB3 and sb3-contrib read."""

import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, FaultyEnv
from family import FAMILY, FULL, PAIRS, TASKS, assert_equal, learned, make, make_with, snapshot, vec_env

OWN = {"correction_net", "correction_average", "correction_optimizer"}
PATHS: dict[str, dict[str, Any]] = {
    "auto": {"gamma": 0.9, "correction_network": "separate", "correction_strength": "auto"},
    "full": {**FULL, "correction_network": "separate", "correction_order": "after", "critic_epochs": 2, "fast": False},
    "shared": {**FULL, "correction_network": "shared", "correction_shrinkage": True},
    "power": {"correction": "power", "normalize_correction": "running", "gamma": 0.9, "critic_learning_rate": 1e-3},
}


def in_file(model: Any) -> io.BytesIO:
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return file


def correction_state(model: Any) -> dict[str, Any]:
    """What the correction has learned, as its parts give it."""
    estimator = model.correction_estimator
    return {
        "estimator": None if estimator is None else {k: v for k, v in estimator.get_state().items() if k != "rng"},
        "strength": model._strength.get_state(),
        "power": model._power.get_state(),
        "clock": model._clock.next_steps,
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", FAMILY)
def test_save_load_go_on(name: str, path: str) -> None:
    # an environment without randomness, so that the loaded model meets what the saved one would have met
    model = make_with(FAMILY[name].ours, name, vec_env(name, lambda: ClockEnv(1000)), **PATHS[path])
    file = in_file(learned(model, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = FAMILY[name].ours.load(file, env=model.get_env(), force_reset=False, device="cpu")
    assert_equal(loaded.get_parameters(), model.get_parameters())
    assert_equal(correction_state(loaded), correction_state(model))
    assert {option: getattr(loaded, option) for option in PATHS[path]} == PATHS[path]
    if path != "power":
        observations = np.linspace(0, 1, 10, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(loaded.predict_correction(observations), model.predict_correction(observations))
        assert path == "auto" or loaded.predict_correction(observations).std() > 0.0
    if name == "ppo_recurrent":
        # sb3-contrib loses the memory at loading, so that only the correction's part can be compared
        return
    results = []
    for each in (model, loaded):
        for env in each.get_env().envs:
            env.unwrapped.t = 5 * 24
        each.set_random_seed(1)  # as in SB3, loading begins the streams anew
        learned(each, 3, reset_num_timesteps=False)
        results.append([snapshot(each), correction_state(each), each.correction_weights])
    assert_equal(*results)


def test_clock_of_a_model_saved_after_an_interruption() -> None:
    model = make_with(FAMILY["ppo"].ours, "ppo", vec_env("ppo", lambda: FaultyEnv(40, KeyboardInterrupt(), length=1000), 1))
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    loaded = FAMILY["ppo"].ours.load(in_file(model), env=model.get_env(), force_reset=False, correction="power", gamma=0.9)
    loaded.correction_strength, loaded.normalize_correction = 1.0, False
    learned(loaded, 1, reset_num_timesteps=False)
    assert loaded.correction_weights[0, 0] == pytest.approx(0.9**39)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_another_environment_begins_anew(n_envs: int) -> None:
    model = learned(make_with(FAMILY["ppo"].ours, "ppo", vec_env("ppo", lambda: ClockEnv(1000))), 2)
    env = vec_env("ppo", lambda: ClockEnv(1000), n_envs)
    loaded = learned(FAMILY["ppo"].ours.load(in_file(model), env=env), 1, reset_num_timesteps=False)
    assert loaded.correction_weights.shape == (24, n_envs)
    np.testing.assert_array_equal(loaded._clock.steps, np.tile(np.arange(24)[:, None], n_envs))


# Options that change at loading


@pytest.mark.parametrize(
    "options",
    [
        {"correction_network": "shared"},
        {"correction_averaging": False},
        {"correction_network": "shared", "correction_averaging": False, "critic_epochs": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", FAMILY)
def test_another_network_starts_afresh(name: str, options: dict[str, Any]) -> None:
    cls = FAMILY[name].ours
    model = learned(make(name, **FULL, correction_network="separate"))
    with pytest.warns(UserWarning, match="correction starts afresh"):
        loaded = cls.load(in_file(model), env=model.get_env(), **options)
    assert_equal(loaded.policy.state_dict(), model.policy.state_dict())
    fresh = make(name, **{**FULL, "correction_network": "separate", **options})
    assert_equal(
        {key: value.shape for key, value in loaded.correction_net.state_dict().items()},
        {key: value.shape for key, value in fresh.correction_net.state_dict().items()},
    )
    np.testing.assert_array_equal(loaded.predict_correction(model._last_obs), 1.0)
    assert not loaded.correction_optimizer.state_dict()["state"]
    learned(loaded, 1)


@pytest.mark.parametrize(
    "options", [{"correction": None}, {"correction": "power"}, {"gamma": 1.0}, {"correction_learning_rate": 1e-4}]
)
def test_other_options_need_no_warning(options: dict[str, Any]) -> None:
    model = learned(make("ppo"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = FAMILY["ppo"].ours.load(in_file(model), env=model.get_env(), **options)
    assert np.isfinite(learned(loaded, 1).correction_weights).all()


# SB3's contract


@pytest.mark.parametrize("name", FAMILY)
def test_parameters_are_given_and_taken(name: str) -> None:
    options = {**FULL, "correction_network": "separate"}
    a, b = learned(make(name, **options)), make(name, **options, seed=4)
    given = a.get_parameters()
    assert given.keys() == {"policy", "policy.optimizer"} | OWN
    b.set_parameters(given)
    assert_equal(b.get_parameters(), given)


@pytest.mark.parametrize("missing", ["policy", "policy.optimizer", *sorted(OWN)])
@pytest.mark.parametrize("name", ["ppo", "a2c", "bac"])
def test_every_part_must_be_there(name: str, missing: str) -> None:
    model = make(name, correction_network="separate")
    parameters = model.get_parameters()
    del parameters[missing]
    with pytest.raises(ValueError, match="Names of parameters do not match"):
        model.set_parameters(parameters, exact_match=True)
    model.set_parameters(parameters, exact_match=False)


def test_parameters_of_a_model_without_a_correction_are_taken() -> None:
    theirs, ours = learned(make("ppo", ours=False)), learned(make("ppo", **FULL, seed=4))
    before = {name: ours.get_parameters()[name] for name in OWN}
    ours.set_parameters(theirs.get_parameters(), exact_match=True)
    assert_equal(ours.policy.state_dict(), theirs.policy.state_dict())
    assert_equal({name: ours.get_parameters()[name] for name in OWN}, before)
    with pytest.raises(ValueError, match="nothing_of_ours is an invalid object name"):
        ours.set_parameters({**theirs.get_parameters(), "nothing_of_ours": {}}, exact_match=False)


def test_parameters_from_a_file(tmp_path: Path) -> None:
    a, b = learned(make("ppo", **FULL)), make("ppo", **FULL, seed=4)
    a.save(tmp_path / "model")
    b.set_parameters(str(tmp_path / "model"))
    assert_equal(b.get_parameters(), a.get_parameters())


# Files of the algorithm's own


@pytest.mark.parametrize("name", FAMILY)
def test_files_of_the_algorithm_are_taken(name: str) -> None:
    member = FAMILY[name]
    model = learned(make(name, ours=False))
    with pytest.warns(UserWarning, match="correction starts afresh"):
        ours = member.ours.load(in_file(model), env=model.get_env(), device="cpu")
    assert_equal(ours.policy.state_dict(), model.policy.state_dict())
    assert_equal(ours.policy.optimizer.state_dict()["state"], model.policy.optimizer.state_dict()["state"])
    assert learned(ours, 1).correction_weights.shape == (24, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        member.ours.load(in_file(model), correction=None, device="cpu")  # nothing to warn of


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name, task", [pair for pair in PAIRS if pair[1] in ("discrete", "continuous", "dict")])
def test_the_algorithm_reads_our_files(name: str, task: str, path: str) -> None:
    if path != "auto" and task != "discrete":
        path = "auto"
    member = FAMILY[name]
    ours = learned(make(name, task=task, **PATHS[path]), 2)
    env = vec_env(name, TASKS[task].make)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = member.theirs.load(in_file(ours), env=env, device="cpu")
    assert type(model) is member.theirs
    assert_equal(model.policy.state_dict(), ours.policy.state_dict())
    assert_equal(model.get_parameters()["policy.optimizer"]["state"], ours.get_parameters()["policy.optimizer"]["state"])
    learned(model, 2, reset_num_timesteps=False)
    # and what it saves is still ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = member.ours.load(in_file(model), env=env, device="cpu")
    assert_equal(correction_state(again)["estimator"], correction_state(ours)["estimator"])


ALONE = """
import sys, warnings
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sb3_avgcorr":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocked())
warnings.simplefilter("error", UserWarning)
import gymnasium, sb3_contrib, stable_baselines3
for name, file in zip(sys.argv[1::2], sys.argv[2::2]):
    cls = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    model = cls.load(file, env=gymnasium.make("CartPole-v1"), device="cpu")
    model.learn(model.num_timesteps + 1, reset_num_timesteps=False, **({"use_masking": False} if "Mask" in name else {}))
assert "sb3_avgcorr" not in sys.modules
print("read", len(sys.argv[1::2]))
"""


def test_a_colleague_without_our_package_reads_our_files(tmp_path: Path) -> None:
    arguments = []
    for name in ("ppo", "a2c", "bac", "trpo", "ppo_mask", "ppo_recurrent"):
        model = make_with(FAMILY[name].ours, name, vec_env(name, TASKS["cartpole"].make, 1), **FULL)
        learned(model, 2).save(tmp_path / name)
        theirs = "A2C" if name == "bac" else FAMILY[name].theirs.__name__
        arguments += [theirs, str(tmp_path / f"{name}.zip")]
    done = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["read", "6"]


def test_policy_alone_and_its_trace(tmp_path: Path) -> None:
    model = learned(make("ppo", task="continuous"))
    observation = np.ones((1, 3), dtype=np.float32)
    expected = model.predict(observation, deterministic=True)[0]
    model.policy.save(str(tmp_path / "policy"))
    policy = type(model.policy).load(str(tmp_path / "policy"))
    np.testing.assert_allclose(policy.predict(observation, deterministic=True)[0], expected, rtol=1e-5)

    class Exported(th.nn.Module):
        """The wrapper of SB3's page on export."""

        def __init__(self, policy: th.nn.Module) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, observation: th.Tensor) -> Any:
            return self.policy(observation, deterministic=True)

    traced = th.jit.trace(Exported(model.policy).eval(), th.as_tensor(observation), check_trace=False)
    np.testing.assert_allclose(traced(th.as_tensor(observation))[0].detach().numpy().clip(-1, 1), expected, rtol=1e-5)
