"""Where a command writes when it is not told, and how this program is called."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def default_folder(env_id: str, algorithm: str, seeds: Sequence[int]) -> Path:
    """runs/<env>/<algorithm>/s<seeds>-<time>, free at this moment."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    seeds_text = "_".join(map(str, seeds))
    return Path("runs") / env_id.replace("/", "_") / algorithm / f"s{seeds_text}-{stamp}"


def program() -> str:
    """How this program is called here, so that a printed command can be typed as it is."""
    called = Path(sys.argv[0])
    found = shutil.which("rescore")
    if found and called.exists() and os.path.samefile(found, called):
        return "rescore"
    return os.path.relpath(called) if called.name == "rescore" else "python -m rescore"
