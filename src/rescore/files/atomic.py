"""The one way to replace a file or a folder: written aside, forced to the disk, renamed.

A process killed at any moment leaves the old content or the new, never a part of it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty file beside `path`, which takes its name if the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(path)
    part.touch(exist_ok=False)  # exclusive: never through a symbolic link; its mode is the umask's
    try:
        yield part
        sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, which takes its name if the block ends without an error."""
    part, old = _beside(path), _beside(path)
    part.mkdir(parents=True)
    try:
        yield part
        for file in part.iterdir():
            sync(file)
        sync(part)
        if path.exists():
            os.rename(path, old)
        os.rename(part, path)
    except BaseException:
        if old.exists():
            os.rename(old, path)
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():  # not every system can open a folder
            return
        raise
    try:
        os.fsync(fd)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(fd)


def _beside(path: Path) -> Path:
    # Not the process number, which is soon used again where processes live in containers.
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
