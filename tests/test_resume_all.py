"""Every registered algorithm goes on after a load as it would have without, bit for bit."""

from dataclasses import fields

import numpy as np
import pytest

from rescore import Agent
from rescore.algorithms import find
from rescore.training import checkpoint
from rescore.training.replay import unpack
from tests.small import NAMES, SIZES

pytestmark = pytest.mark.usefixtures("quick")
TRAINING = {"num_envs": 1, "eval_every": 0, "log_every": 10, "checkpoint_every": 0}
BY_SOURCE = {
    "replay": {"chunk": 5, "warmup": 20, "batch_size": 8, "replay_capacity": 40},
    "rollout": {"chunk": 10},
}
HALF = 30  # then the ring of replay goes round


@pytest.mark.parametrize("name", NAMES)
def test_resumed_equals_uninterrupted(name, tmp_path):
    sizes = {k: v for k, v in SIZES.items() if k in {field.name for field in fields(find(name))}}
    training = TRAINING | BY_SOURCE[find(name).source]
    with Agent(name, "Pendulum-v1", seeds=(0, 7), training=training, **sizes) as agent:
        agent.evaluate = None  # it only reads, and costs
        saved = agent.learn(HALF).save(tmp_path / "half")
        whole = checkpoint.load(agent.learn(HALF).save(tmp_path / "whole"))
    with Agent.load(saved) as again:
        assert again.run.env_steps == HALF and not again.notes
        again.evaluate = None
        resumed = checkpoint.load(again.learn(HALF).save(tmp_path / "resumed"))

    assert whole[0].keys() == resumed[0].keys() >= {"state", "loop", "envs"}
    for group in whole[0]:
        assert whole[0][group].keys() == resumed[0][group].keys()
        for leaf, array in whole[0][group].items():
            assert array.tobytes() == resumed[0][group][leaf].tobytes(), f"{group} {leaf}"
    # Something was learned between the two ends.
    half = checkpoint.load(saved)[0]["state"]
    assert sum(not np.array_equal(half[leaf], x) for leaf, x in whole[0]["state"].items()) > 5
    if again.algo.keeps_particles:
        rows = unpack(whole[0]["replay"]["rows"], again.run.envs.spec, particles=True)
        assert (rows.particle != rows.action).any(axis=(1, 2)).all()
