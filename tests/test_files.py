"""Files and folders are replaced whole or not at all."""

import os
import stat

import pytest

from rescore.core import UsageError
from rescore.files.atomic import replacing, replacing_folder
from rescore.files.json import append_jsonl, read_jsonl, write_jsonl
from rescore.files.run_record import new_folder


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "below" / "a.txt"
    with replacing(path) as part:
        part.write_text("first")
        assert not path.exists() and part.parent == path.parent
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("second")
        raise ZeroDivisionError
    assert path.read_text() == "first" and os.listdir(path.parent) == ["a.txt"]


def test_its_mode_is_that_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as part:
            part.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_nothing_is_written_through_links(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda n: "known")
    (tmp_path / ".a.known.part").symlink_to(secret)
    with pytest.raises(FileExistsError), replacing(tmp_path / "a") as part:
        part.write_text("x")
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(secret)
    with replacing(tmp_path / "link") as part:
        part.write_text("x")
    assert secret.read_text() == "mine" and not (tmp_path / "link").is_symlink()


def test_a_folder_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "c"
    for name in ("one", "two"):
        with replacing_folder(path) as part:
            (part / name).touch()
    assert os.listdir(path) == ["two"] and os.listdir(tmp_path) == ["c"]
    really, calls = os.rename, []

    def second_fails(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError("no space left")
        really(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(OSError, match="no space left"), replacing_folder(path) as part:
        (part / "three").touch()
    assert os.listdir(path) == ["two"] and os.listdir(tmp_path) == ["c"]


def test_json_lines(tmp_path):
    path = tmp_path / "rows" / "a.jsonl"
    write_jsonl(path, [{"a": 1}, {"a": float("nan")}])
    append_jsonl(path, {"a": "é"})
    assert read_jsonl(path) == [{"a": 1}, {"a": None}, {"a": "é"}]
    assert "é" in path.read_text(encoding="utf-8")


def test_a_folder_is_claimed_once(tmp_path):
    folder = new_folder(tmp_path / "runs" / "a")
    assert new_folder(folder) == folder  # empty still
    (folder / "notes").touch()
    with pytest.raises(UsageError, match="is not empty"):
        new_folder(folder)
    (folder / "run.json").touch()
    with pytest.raises(UsageError, match=r"holds another run: choose another folder \(--out\)$"):
        new_folder(folder)
    (folder / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="rescore resume"):
        new_folder(folder)
