"""Arithmetic units of processors, and the kernels compiled for each."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax

from rescore.core import UsageError

HERE = Path(__file__).parent
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-ffp-contract=fast", "-Wall"]
FLAGS += ["-Wextra", "-Wno-maybe-uninitialized"]  # GCC 12 warns of its own headers


class Unit(NamedTuple):
    """A kind of arithmetic unit: what processors call it, and the compiler."""

    needed: frozenset[str]  # flags of the processor
    flags: tuple[str, ...]


AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
UNITS = {  # best first
    "amx": Unit(
        frozenset({"fma", "amx_bf16", "amx_tile", "avx512_bf16", *AVX512}),
        ("-mfma", "-mamx-tile", "-mamx-bf16", "-mavx512bf16", *(f"-m{x}" for x in AVX512)),
    ),
    "avx512": Unit(frozenset({"fma", *AVX512}), ("-mfma", *(f"-m{x}" for x in AVX512))),
    "avx2": Unit(frozenset({"fma", "avx2"}), ("-mfma", "-mavx2")),
}


def library(unit: str) -> Path:
    """Where the kernels of this source for a unit and this jaxlib are kept."""
    from jaxlib import version

    sources = [path.read_text() for path in [*sorted(HERE.glob("*.h")), HERE / "kernels.cc"]]
    text = "".join(sources) + " ".join([*FLAGS, *UNITS[unit].flags])
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return HERE / "build" / f"kernels-{version.__version__}-{unit}-{key}.so"


@cache
def processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def usable_units() -> list[str]:
    """The units of this processor, best first; of these the one that RESCORE_NATIVE names."""
    asked = os.environ.get("RESCORE_NATIVE", "")
    if asked not in ("", "0", "1", *UNITS):
        raise UsageError(f"RESCORE_NATIVE must be 0 or one of {', '.join(UNITS)}, not {asked!r}")
    units = [asked] if asked in UNITS else list(UNITS)
    return [unit for unit in units if UNITS[unit].needed <= processor_flags()]


def build(unit: str) -> Path:
    """Compiles the kernels for a unit, unless they are there."""
    path = library(unit)
    if path.exists():
        return path
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    command = [*shlex.split(os.environ.get("CXX", "c++")), *FLAGS, *UNITS[unit].flags]
    command += [f"-isystem{jax.ffi.include_dir()}", str(HERE / "kernels.cc"), "-o", str(aside)]
    try:
        path.parent.mkdir(exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"the kernels were not compiled: {error}") from None
    if done.returncode:
        aside.unlink(missing_ok=True)
        lines = done.stderr.splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise UsageError(f"the kernels were not compiled: {first}")
    os.replace(aside, path)
    for old in set(path.parent.glob(f"{path.name.rpartition('-')[0]}-*.so")) - {path}:
        old.unlink(missing_ok=True)  # of an older source; another jaxlib or unit keeps its own
    return path
