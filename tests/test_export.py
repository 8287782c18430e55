"""Exported policies do what `predict` does, by another program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore import Agent, UsageError, streams
from rescore.algorithms import REGISTRY
from rescore.export import observations, run_onnx
from rescore.export.onnx import serialise
from rescore.export.program import trace
from tests.small import rescore_command, small
from tests.test_predict import Matrix

onnxruntime = pytest.importorskip("onnxruntime")
TRAINING = {"warmup": 20, "batch_size": 8, "eval_every": 0, "eval_episodes": 1}
QUICK = ("dpmd", "sdac", "td3")
DETERMINISTIC = ("dpmd", "sdac", "sac", "td3", "ppo")  # without exploration
# DPPO's only sample is denoised without a choice among candidates, and its first step divides by
# sqrt(alpha_bar_T) = 0.012: the rounding of either program, some 1e-7, grows 83 times wherever the
# box does not clip it. `test_exports_are_as_exact_as_predict` holds both against float64.
LOOSER = {"dppo": 4e-5}


def make_agent(name: str, env: object = "Hopper-v4", **more) -> Agent:
    algo = small(name, **more)
    training = TRAINING if algo.source == "replay" else {"chunk": 32, "eval_every": 0}
    return Agent(algo, env, seeds=(0, 1), training=training)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in REGISTRY]
)
def test_every_policy_is_exported_as_it_predicts(name, tmp_path):
    with make_agent(name) as agent:
        agent.learn(40 if agent.algo.source == "replay" else 64, evaluate=False)
        for form in ("onnx", "jax"):
            made = agent.export(tmp_path / f"policy.{form}", form, member=1)
            assert made.difference < LOOSER.get(name, 1e-5)
            assert made.beyond <= (10 if name in LOOSER else 0)
            assert made.bytes == made.path.stat().st_size and made.ms > 0
            assert (made.noise_dim == 0) == (name in DETERMINISTIC)


@pytest.mark.slow
def test_exports_are_as_exact_as_predict():
    """Where float32 is short of digits, the file has no fewer of them than `predict`."""
    with make_agent("dppo") as agent:
        agent.learn(64, evaluate=False)
        run, policy, envs, algo = agent.run, agent.policy(1), agent.run.envs, agent.algo
        state = jax.tree.unflatten(policy.layout, [x[0] for x in policy.leaves()])
        draw = streams.key(envs.seeds[1], streams.Stream.PREDICT, 0)
        unit = (np.zeros(3), np.ones(3))
        program = trace(algo, state, envs.spec.obs_dim, unit, envs.act_shape, draw)
        act, seen = run_onnx(serialise(program, {}), program), observations(run, 1)
        theirs = np.stack([act(obs, program.noise) for obs in seen])
        ours = np.stack([policy.act(obs[None], True)[0] for obs in seen])
        with jax.enable_x64(True):
            to64 = lambda x: np.asarray(x, np.float64) if x.dtype == np.float32 else x  # noqa: E731
            noise = jnp.asarray(to64(program.noise)).reshape(-1, 1, 3)
            with streams.drawn_from(lambda _, shape: jnp.broadcast_to(noise, shape)):
                exact = algo.act(jax.tree.map(to64, state), jnp.asarray(to64(seen)), draw, False)
            exact = np.asarray(exact.action)
    assert exact.dtype == np.float64
    off = {"theirs": np.abs(theirs - exact).max(1), "ours": np.abs(ours - exact).max(1)}
    enlarged = np.finfo(np.float32).eps / np.sqrt(algo.noise_schedule.alpha_bar[-1])
    assert off["theirs"].max() < 4 * enlarged and off["ours"].max() < 4 * enlarged
    assert np.quantile(off["theirs"], 0.99) < 1.5 * np.quantile(off["ours"], 0.99) < 1e-5


def test_the_file_alone_gives_the_same_actions(tmp_path):
    """Not by the check that export makes of itself; a Dict seen and a matrix done."""
    with make_agent("sac", Matrix, normalise_obs=True) as agent:
        agent.learn(40, evaluate=False)
        agent.export(tmp_path / "policy.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
        (taken,) = session.get_inputs()
        assert (taken.name, taken.shape) == ("observation", [8])
        env = Matrix()
        for seed in range(20):
            obs, _ = env.reset(seed=seed)
            flat = gymnasium.spaces.flatten(env.observation_space, obs).astype(np.float32)
            (action,) = session.run(["action"], {"observation": flat})
            expected, _ = agent.predict(obs, deterministic=True)
            assert env.action_space.contains(action)
            np.testing.assert_allclose(action, expected, atol=3e-5)
        assert session.get_modelmeta().custom_metadata_map["algorithm"] == "sac"


def test_noise_chooses_the_action(tmp_path):
    with make_agent("qvpo") as agent:
        made = agent.export(tmp_path / "policy.onnx")
        # T + 1 draws of 3 actions for each of 3 candidates, and none for exploration.
        assert made.noise_dim == (agent.algo.T + 1) * 3 * agent.algo.eval_candidates
        session, rng = onnxruntime.InferenceSession(made.path), np.random.default_rng(0)
        given = {"observation": np.zeros(11, np.float32)}
        draws = [rng.standard_normal(made.noise_dim, np.float32) for _ in range(2)]
        one, other, again = (session.run(None, {**given, "noise": draws[i]})[0] for i in (0, 1, 0))
        assert np.array_equal(one, again) and not np.allclose(one, other)
        agent.export(tmp_path / "policy.jax", "jax")
        read = jax.export.deserialize(bytearray((tmp_path / "policy.jax").read_bytes()))
        ours = read.call(given["observation"], draws[0])
        np.testing.assert_allclose(np.asarray(ours), one, atol=1e-5)


def test_unknown_formats_are_refused(tmp_path):
    with make_agent("td3") as agent, pytest.raises(UsageError, match="unknown format 'onxx'"):
        agent.export(tmp_path / "policy", "onxx")


def test_from_the_command_line(tmp_path, capsys):
    with make_agent("td3", "rescore/Probe1-v0") as agent:
        agent.save(tmp_path / "saved")
    assert rescore_command(f"export {tmp_path}/saved --member 1") == 0
    said = capsys.readouterr().out
    assert "policy.onnx" in said and "kB" in said and "ms per action" in said
    assert "observation [1], noise [0]" in said
    for bad in ("--format tflite", "--member 7"):
        assert rescore_command(f"export {tmp_path}/saved {bad}") == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    for bad in ("", "nowhere"):
        assert rescore_command(f"export {bad}") == 2
    capsys.readouterr()
    # The loop of the example imports neither JAX nor rescore, and runs.
    example = Path(__file__).parents[1] / "examples" / "control_loop.py"
    assert len(example.read_text().splitlines()) < 30
    with make_agent("td3", "InvertedPendulum-v4") as agent:
        agent.export(tmp_path / "pendulum.onnx")
    loop = [sys.executable, example, tmp_path / "pendulum.onnx"]
    done = subprocess.run(loop, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("return ")


def test_a_policy_that_differs_is_not_written(tmp_path, monkeypatch):
    """Also where it gives what is not a number; the file of before stays."""
    path = tmp_path / "policy.onnx"
    path.write_text("a good one")
    monkeypatch.setattr(
        "rescore.export.run_onnx", lambda *_: lambda obs, noise: np.full(3, np.nan, np.float32)
    )
    with make_agent("sac") as agent, pytest.raises(UsageError, match="was not written: it differs"):
        agent.export(path)
    assert path.read_text() == "a good one"
