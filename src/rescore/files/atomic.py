"""The one way to replace a file or a folder: written aside, forced to the disk, renamed.

A process killed at any moment leaves the old content or the new, never a part of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO


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
            file.chmod(part.stat().st_mode & 0o666)  # as the umask says; safetensors has its own
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
    for left in leftovers(path):
        remove(left)
    sync(path.parent)


def leftovers(path: Path) -> list[Path]:
    """What killed processes left hidden beside a path, newest first; it may be whole."""
    name = rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}\.part{re.escape(path.suffix)}"
    found = [p for p in path.parent.glob(".*") if re.fullmatch(name, p.name)]
    return sorted(found, key=lambda p: p.lstat().st_mtime, reverse=True)


def remove(path: Path) -> None:
    """Delete a file, a folder or a link, but nothing behind a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file until nothing is left: a system call may write a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        if not path.is_dir():  # not every file system can do it for a folder
            raise
    finally:
        os.close(fd)


def _beside(path: Path) -> Path:
    # Not the process number, which is soon used again where processes live in containers.
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
