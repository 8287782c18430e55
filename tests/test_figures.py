"""Learning curves: the numbers behind the picture, and a picture that is not empty."""

import numpy as np
import pytest

from rescore.core import UsageError
from rescore.files.json import write_json
from rescore.files.logs import EvalLog, EvalRow, MetricsLog
from rescore.show.curves import learning_curve, summarise

EVERY = 25_000


def make_run(folder, seeds=(0,), algorithm="dpmd", top=9000.0, evaluations=40):
    random = np.random.default_rng([len(algorithm), *seeds])
    metrics, log = MetricsLog(folder), EvalLog(folder)
    for index in range(1, evaluations + 1):
        env_steps = index * EVERY
        for seed in seeds:
            level = top * (1 - np.exp(-env_steps / 250_000)) + random.normal(0, 150)
            returns = level + random.normal(0, 300, size=5)
            rows = enumerate(returns)
            log.write([EvalRow(env_steps, seed, i, i, value, 1000) for i, value in rows])
        for part in range(10):
            noisy = 0.93 * level + random.normal(0, 300)
            metrics.write({"env_steps": env_steps - EVERY + part * 2500, "return": noisy})
    config = {"algorithm": algorithm, "env": "HalfCheetah-v4"}
    write_json(folder / "run.json", {"status": "finished", "config": config})
    return folder


def picture(path):
    from matplotlib.image import imread

    image = imread(path)
    assert image.shape[1] == 1400
    assert image[..., :3].std() > 0.02
    return image


def test_mean_and_spread():
    rows = [EvalRow(10, 0, i, 0, value, 1) for i, value in enumerate((1.0, 3.0))]
    alone = summarise([rows])
    assert (alone.mean[0], alone.std[0], alone.seeds, alone.episodes) == (2.0, 1.0, 1, 2)
    other = [EvalRow(10, 1, 0, 0, 6.0, 1), EvalRow(20, 1, 0, 0, 7.0, 1)]
    both = summarise([rows, other])
    assert both.env_steps.tolist() == [10]  # only one of them has got to 20
    assert both.mean.tolist() == [4.0] and both.std[0] == pytest.approx(2.0 * 2**0.5)
    apart = [EvalRow(30, 1, 0, 0, 6.0, 1)]
    assert summarise([rows, apart]).env_steps.tolist() == [10, 30]
    assert summarise([rows, rows]).seeds == 2


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_one_run(tmp_path, seeds):
    make_run(tmp_path / "run", seeds)
    path = learning_curve({"dpmd": [tmp_path / "run"]}, tmp_path / "plots" / "curve.png")
    picture(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["curve.png"]


def test_several_runs(tmp_path):
    folders = [make_run(tmp_path / f"a{seed}", (seed,)) for seed in range(2)]
    other = make_run(tmp_path / "b", (0,), "sdac", 11_000.0)
    picture(learning_curve({"dpmd": folders, "sdac": [other]}, tmp_path / "many.png"))
    lone = make_run(tmp_path / "lone", evaluations=1)
    picture(learning_curve({"dpmd": [lone]}, tmp_path / "lone.png"))


def test_nothing_to_draw(tmp_path):
    EvalLog(tmp_path).close()
    with pytest.raises(UsageError, match="no evaluation"):
        learning_curve({"dpmd": [tmp_path]}, tmp_path / "x.png")
    begun = make_run(tmp_path / "begun")
    with pytest.raises(UsageError, match="no evaluation"):
        learning_curve({"dpmd": [begun], "not yet": [tmp_path]}, tmp_path / "x.png")
