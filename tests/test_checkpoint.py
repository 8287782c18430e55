"""Checkpoints: what goes in comes out, whole or not at all, and nothing in them is ever run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rescore
from rescore.core import UsageError
from rescore.training import checkpoint

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64"]
ARRAYS = {
    "state": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int32(7)},
    "loop": {"obs": np.zeros((1, 2), np.float32)},
}


def equal(a: dict, b: dict) -> bool:
    """Same names, shapes, types and bits."""
    return a.keys() == b.keys() and all(
        (x := np.asarray(a[k])).dtype == (y := np.asarray(b[k])).dtype
        and x.shape == y.shape
        and x.tobytes() == y.tobytes()
        for k in a
    )


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def fail(*_args: object, **_kwargs: object) -> None:
    raise OSError("no space left")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    group=st.dictionaries(
        st.text("abc[]'./0_é", min_size=1, max_size=12),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=4,
    )
)
def test_arrays_come_back_bit_for_bit(group, tmp_path_factory):
    folder = tmp_path_factory.mktemp("round") / "c"
    checkpoint.save(folder, {"one": group, "two": {}}, {"note": "x"})
    arrays, manifest = checkpoint.load(folder)
    assert equal(arrays["one"], group)
    assert arrays["two"] == {} and manifest["note"] == "x"


def test_layout_in_memory_does_not_matter(tmp_path):
    array = np.arange(24.0).reshape(2, 3, 4)
    views = {"t": array.T, "slice": array[:, ::2], "fortran": np.asfortranarray(array)}
    arrays, _ = checkpoint.load(checkpoint.save(tmp_path / "c", {"a": views}, {}))
    assert equal(arrays["a"], views)


def test_metadata_keep_their_floats_and_refuse_what_json_cannot_say(tmp_path):
    numbers = [0.1, 1e-300, -0.0, 2**60, None]
    _, manifest = checkpoint.load(checkpoint.save(tmp_path / "c", ARRAYS, {"numbers": numbers}))
    assert list(map(repr, manifest["numbers"])) == list(map(repr, numbers))
    with pytest.raises(ValueError):
        checkpoint.save(tmp_path / "d", ARRAYS, {"bad": float("nan")})
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("moment", ["first file", "second file", "manifest", "rename"])
def test_an_interrupted_save_leaves_the_old_one(tmp_path, monkeypatch, moment):
    import safetensors.numpy

    run = tmp_path / "run"
    old = checkpoint.save(run / "checkpoints" / "step_000000010", ARRAYS, {"n": 1})
    before = content(old)
    written = []

    def save_file(*args: object) -> None:
        written.append(args)
        if len(written) == {"first file": 1, "second file": 2}.get(moment):
            fail()
        real(*args)

    real = safetensors.numpy.save_file
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", save_file)
        if moment == "manifest":
            patch.setattr(Path, "write_text", fail)
        if moment == "rename":
            patch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="no space left"):
            checkpoint.save(run / "checkpoints" / "step_000000020", ARRAYS, {"n": 2})
    assert checkpoint.stored(run) == [old] and content(old) == before
    assert checkpoint.load_newest(run)[2]["n"] == 1

    checkpoint.save(run / "checkpoints" / "step_000000020", ARRAYS, {"n": 2})
    checkpoint.prune(run, 2)
    left = sorted(os.listdir(run / "checkpoints"))
    assert left == ["step_000000010", "step_000000020"]


def test_saving_again_replaces_all_of_it(tmp_path):
    folder = checkpoint.save(tmp_path / "best", ARRAYS, {"n": 1})
    checkpoint.save(folder, {"state": ARRAYS["state"]}, {"n": 2})
    assert sorted(os.listdir(folder)) == ["checkpoint.json", "state.safetensors"]
    assert checkpoint.load(folder)[1]["n"] == 2
    assert os.listdir(tmp_path) == ["best"]


def test_saving_never_replaces_anything_else(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    (tmp_path / "notes.txt").write_text("more work")
    (tmp_path / "empty").mkdir()
    for name in ("thesis", "notes.txt"):
        with pytest.raises(UsageError, match=f"{name}.*choose another"):
            checkpoint.save(tmp_path / name, ARRAYS, {})
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"
    checkpoint.load(checkpoint.save(tmp_path / "empty", ARRAYS, {}))


def test_prune_keeps_the_newest_and_clears_leftovers(tmp_path):
    for step in (5, 100, 20, 1_000_000_000):
        checkpoint.save(tmp_path / "checkpoints" / f"step_{step:09d}", ARRAYS, {"n": step})
    for left in ("checkpoints/.step_000000100.partial-1", "checkpoints/.step_000000005.old-1"):
        (tmp_path / left).mkdir()
    (tmp_path / ".best.partial-1").mkdir()
    (tmp_path / ".mine").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert [p.name for p in checkpoint.stored(tmp_path)] == ["step_1000000000", "step_000000100"]
    assert sorted(os.listdir(tmp_path)) == [".mine", "checkpoints"]
    assert len(os.listdir(tmp_path / "checkpoints")) == 2


def damage(folder: Path, kind: str) -> None:
    """Each of the ways in which a checkpoint goes wrong."""
    manifest, state = folder / "checkpoint.json", folder / "state.safetensors"
    data = json.loads(manifest.read_text())
    if kind == "missing":
        state.unlink()
    elif kind == "truncated":
        state.write_bytes(state.read_bytes()[:-5])
    elif kind == "flipped":
        blob = bytearray(state.read_bytes())
        blob[-1] ^= 1
        state.write_bytes(blob)
    elif kind == "not safetensors":
        state.write_bytes(b"\x80\x04rubbish")
        data["files"][state.name] = checkpoint.digest(state)
    elif kind == "no manifest":
        manifest.unlink()
        return
    elif kind == "torn manifest":
        manifest.write_text(manifest.read_text()[:40])
        return
    elif kind == "binary manifest":
        manifest.write_bytes(b"\xff\xfe\x00")
        return
    elif kind == "a list":
        data = [1, 2]
    elif kind == "foreign":
        data["format"] = "other-program"
    elif kind in ("past", "future"):
        data["version"] = checkpoint.VERSION + (1 if kind == "future" else -1)
    elif kind == "escape":
        outside = folder.parent / "x.safetensors"
        outside.write_bytes(state.read_bytes())
        data["files"] = {"../x.safetensors": checkpoint.digest(outside)}
    elif kind == "absolute":
        data["files"] = {str(state): checkpoint.digest(state)}
    elif kind == "other kind":
        (folder / "state.pkl").write_bytes(state.read_bytes())
        data["files"] = {"state.pkl": checkpoint.digest(folder / "state.pkl")}
    elif kind == "changed":
        data["n"] += 1
        manifest.write_text(json.dumps(data))
        return
    elif kind == "deep":
        manifest.write_text("[" * 100_000)
        return
    if isinstance(data, dict):  # by somebody who can compute checksums
        data["sha256"] = checkpoint.signature(data)
    manifest.write_text(json.dumps(data))


REASONS = {
    "missing": "state.safetensors is missing",
    "truncated": "state.safetensors is damaged",
    "flipped": "state.safetensors is damaged",
    "not safetensors": "state.safetensors is damaged",
    "no manifest": "has no checkpoint.json",
    "torn manifest": "checkpoint.json is damaged",
    "binary manifest": "checkpoint.json is damaged",
    "changed": "checkpoint.json is damaged: its checksum",
    "deep": "checkpoint.json is damaged: maximum recursion depth",
    "a list": "was not written by rescore",
    "foreign": "was not written by rescore",
    "past": f"this one reads {checkpoint.VERSION}): train again, or use that version",
    "future": f"this one reads {checkpoint.VERSION}): train again, or use that version",
    "escape": "checkpoint.json is damaged: its list of files",
    "absolute": "checkpoint.json is damaged: its list of files",
    "other kind": "checkpoint.json is damaged: its list of files",
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_wrong_is_said_and_the_one_before_is_used(tmp_path, kind):
    good = checkpoint.save(tmp_path / "checkpoints" / "step_000000010", ARRAYS, {"n": 1})
    bad = checkpoint.save(tmp_path / "checkpoints" / "step_000000020", ARRAYS, {"n": 2})
    damage(bad, kind)
    with pytest.raises(UsageError, match=re.escape(REASONS[kind])) as caught:
        checkpoint.load(bad)
    assert str(bad) in str(caught.value) and "\n" not in str(caught.value)

    folder, arrays, manifest, complaints = checkpoint.load_newest(tmp_path)
    assert folder == good and manifest["n"] == 1
    assert equal(arrays["state"], ARRAYS["state"])
    assert complaints == [str(caught.value)]

    damage(good, kind)
    with pytest.raises(UsageError, match=r"no checkpoint of .* can be read") as caught:
        checkpoint.load_newest(tmp_path)
    assert str(good) in str(caught.value) and str(bad) in str(caught.value)


def test_refill_demands_the_same_names_shapes_and_types():
    state = {"a": np.zeros((2, 3), np.float32), "b": (np.zeros(4, np.int32),)}
    arrays = checkpoint.named_leaves({"a": state["a"] + 1, "b": (state["b"][0] + 2,)})
    again = checkpoint.refill(state, arrays, Path("run/c"))
    assert equal(checkpoint.named_leaves(again), arrays)

    wider = {**arrays, "['a']": np.zeros((2, 4), np.float32)}
    message = r"run/c: \['a'\] is float32\(2, 4\), this configuration needs float32\(2, 3\)"
    with pytest.raises(UsageError, match=message):
        checkpoint.refill(state, wider, Path("run/c"))
    with pytest.raises(UsageError, match=r"is float64.*needs float32"):
        checkpoint.refill(state, {**arrays, "['a']": np.zeros((2, 3))}, Path("run/c"))
    with pytest.raises(UsageError, match=r"run/c holds another algorithm's state: \['c'\]"):
        checkpoint.refill(state, {**arrays, "['c']": np.zeros(1)}, Path("run/c"))
    del arrays["['a']"]
    with pytest.raises(UsageError, match=r"another algorithm's state: \['a'\]"):
        checkpoint.refill(state, arrays, Path("run/c"))


def test_a_checkpoint_holds_arrays_and_json_only(tmp_path):
    folder = checkpoint.save(tmp_path / "c", ARRAYS, {"n": 1})
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    for path in folder.glob("*.safetensors"):
        # The format: length of a JSON header, the header, and numbers.
        blob = path.read_bytes()
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8 : 8 + size])
        end = max(entry["data_offsets"][1] for entry in header.values())
        assert len(blob) == 8 + size + end


def test_nothing_in_the_library_reads_code_from_files():
    forbidden = r"^\s*(import|from) (pickle|cloudpickle|dill|shelve|joblib|marshal)\b"
    forbidden += r"|allow_pickle|\beval\(|\bexec\("
    package = Path(rescore.__file__).parent
    for path in package.rglob("*.py"):
        assert not re.search(forbidden, path.read_text(), re.MULTILINE), path
    assert not [p for p in package.rglob("*") if re.search(r"\.(so|pyd|dll|dylib)\b", p.name)]
