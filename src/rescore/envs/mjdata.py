"""The state of MuJoCo's `MjData` as arrays and scalars, set only where it cannot harm.

MuJoCo believes what it is given: a wrong index or count would have it read or write outside of its
memory. Those that a step makes anew are left alone, all others must be in range.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rescore.core import UsageError

# Indices of sparse matrices and tendons: made anew from positions at the start of each step.
REMADE = ("moment_", "ten_", "wrap_")
AWAKE = ("nbody_awake", "nparent_awake", "ntree_awake", "nv_awake")  # sleeping, mujoco >= 3.4


def read(data: Any, path: str) -> tuple[dict[str, np.ndarray], dict]:
    """Arrays below `path`, and the rest."""
    arrays = {f"{path}/{k}": getattr(data, k).copy() for k in _stable(data)}
    scalars = {k: getattr(data, k) for k in _scalars(data)}
    return arrays, {"model": _digest(data.model), "scalars": scalars}


def write(data: Any, saved: dict, arrays: dict[str, np.ndarray], path: str) -> None:
    """Put back what `read` gave, or a UsageError."""
    if saved["model"] != _digest(data.model):
        raise UsageError("the MuJoCo model is another one than in the snapshot")
    for key in _stable(data):
        target, array = getattr(data, key), arrays[f"{path}/{key}"]
        if (target.shape, target.dtype) != (array.shape, array.dtype):
            raise UsageError(f"MjData.{key} is {target.shape}, in the snapshot {array.shape}")
        if not key.startswith(REMADE):
            _demand_indices(data, key, array)
            target[...] = array
    scalars = saved["scalars"]
    if scalars.keys() != set(_scalars(data)) or not np.isfinite(float(scalars["time"])):
        raise UsageError("the snapshot's scalars are not those of MjData")
    for key in _scalars(data)[1:]:
        size = _size(data.model, key[1:])  # nv_awake counts degrees of freedom
        if type(scalars[key]) is not int or not 0 <= scalars[key] <= size:
            raise UsageError(f"MjData.{key} is {scalars[key]}, which the model does not allow")
    for key, value in scalars.items():
        setattr(data, key, value)


def _stable(data: Any) -> list[str]:
    """Fields of MjData whose length is set by the model: all but contacts and constraints.

    Restoring the integration state alone gives a wrong first reward on Ant, Humanoid and Reacher,
    since derived quantities lag behind it by design. Contacts and constraints lie in the arena,
    to which a new MjData has no pointers yet (then NumPy owns the array); each step remakes them.
    """
    import mujoco

    new = mujoco.MjData(data.model)
    arrays = {k: v for k in dir(new) if isinstance(v := getattr(new, k), np.ndarray)}
    return [k for k, array in arrays.items() if array.size and not array.flags.owndata]


def _scalars(data: Any) -> list[str]:
    return ["time", *(k for k in AWAKE if k in dir(data))]


def _size(model: Any, key: str) -> int:
    """How many there are of what a field about sleeping counts or points to."""
    return getattr(model, {"p": "nbody", "b": "nbody", "t": "ntree"}.get(key[0], "nv"))


def _demand_indices(data: Any, key: str, array: np.ndarray) -> None:
    """Refuse integers that would have MuJoCo read or write outside of its memory."""
    if array.dtype.kind != "i" or key.startswith("solver_"):  # floats, flags and statistics
        return
    low, high = (0, _size(data.model, key)) if key.endswith("_ind") else (-1, 2)
    if key == "tree_asleep":  # a counter below zero while awake, else the next of a ring of trees
        low, high = -(2**15), data.model.ntree
    fits = ("awake" in key or "asleep" in key) and ((low <= array) & (array < high)).all()
    if not fits and not np.array_equal(array, getattr(data, key)):
        raise UsageError(f"MjData.{key} holds indices that the model does not allow")


def _digest(model: Any) -> str:
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.data).hexdigest()
