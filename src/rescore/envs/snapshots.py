"""The exact state of one environment as named arrays and JSON. No pickle.

The chain of wrappers is walked attribute by attribute. Each must be plain data, a random
generator, MuJoCo's `MjData`, or something that does not change (a function, a model, a renderer).
If one is none of these, the environment cannot be saved: an inexact snapshot is worse than none.
An environment helps itself by two methods, `snapshot() -> dict` of plain data and `restore(dict)`.
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rescore.core import UsageError, one_line
from rescore.envs import mjdata
from rescore.envs.spaces import parts

# Fixed by construction, or true only on the machine that saved them.
FIXED = {"env", "spec", "_cached_spec", "metadata", "_metadata", "fullpath"}
FIXED |= {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
DTYPES = {"bool", *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64))}
DTYPES |= {"float16", "float32", "float64"}
BIT_GENERATORS = {
    name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}


class NotPlain(Exception):
    """Some attribute is not plain data; the message names it and says why."""


def capture(env: gymnasium.Env) -> tuple[dict[str, np.ndarray], dict]:
    """State of every layer from the outermost wrapper inwards, or `NotPlain`."""
    writer = _Writer()
    layers = [writer.layer(layer, str(i)) for i, layer in enumerate(_layers(env))]
    return writer.arrays, {"layers": layers, "mujoco": writer.mujoco}


def reinstate(env: gymnasium.Env, arrays: dict[str, np.ndarray], meta: dict) -> None:
    """Put a freshly reset environment of the same kind into the captured state, or a UsageError."""
    layers = _layers(env)
    before = [dict(vars(layer)) for layer in layers]
    try:
        _demand_same_kind(layers, meta)
        reader = _Reader(arrays)
        for i, (layer, saved) in enumerate(zip(layers, meta["layers"])):
            reader.layer(layer, saved, str(i))
    except Exception as error:  # files may hold anything
        for layer, state in zip(layers, before):
            vars(layer).clear()
            vars(layer).update(state)
        if isinstance(error, UsageError):
            raise
        what = f"{error} is missing" if isinstance(error, KeyError) else one_line(repr(error))
        raise UsageError(f"the snapshot is incomplete: {what}") from error


def _demand_same_kind(layers: list[gymnasium.Env], meta: dict) -> None:
    here = [type(layer).__qualname__ for layer in layers]
    there = [layer["type"] for layer in meta["layers"]]
    if here != there:
        raise UsageError(f"the snapshot was taken of {' > '.join(there)}, not {' > '.join(here)}")
    if meta["mujoco"] is not None:
        import mujoco

        if meta["mujoco"] != mujoco.__version__:
            raise UsageError(
                f"the snapshot was taken with mujoco {meta['mujoco']}, this is mujoco "
                f"{mujoco.__version__}: install that version, or start new episodes"
            )


class _Writer:
    """Values to JSON, with arrays set aside under the path where they were found."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.mujoco: str | None = None
        # id -> (path, object); holding the object keeps its id from being given again.
        self._seen: dict[int, tuple[str, Any]] = {}

    def layer(self, layer: Any, path: str) -> dict:
        name = type(layer).__qualname__
        if _saves_itself(layer):
            own = self.value(layer.snapshot(), f"{path}/snapshot()", f"{name}.snapshot()")
            # Easily forgotten, and harmless to save twice.
            state = {"_np_random": vars(layer).get("_np_random")}
        else:
            own, state = None, vars(layer)
            if any(vars(cls).get("__slots__") for cls in type(layer).__mro__):
                raise NotPlain(f"{name} keeps attributes in __slots__")
        attributes, kept = {}, {}
        for key in sorted(state.keys() - FIXED):
            label = _kept(state[key])
            if label is not None:
                kept[key] = label
            else:
                attributes[key] = self._attribute(state[key], f"{path}/{key}", f"{name}.{key}")
        return {"type": name, "own": own, "attributes": attributes, "kept": kept}

    def _attribute(self, value: Any, path: str, name: str) -> Any:
        if isinstance(value, spaces.Space):
            # Spaces do not change, but some environments draw from them.
            generators = [space._np_random for space in parts(value)]
            return {"space": self.value(generators, path, name)}
        if _is_mujoco(value, "MjData"):
            return {"mjdata": self._mjdata(value, path)}
        return self.value(value, path, name)

    def _mjdata(self, data: Any, path: str) -> dict:
        import mujoco

        if data.nplugin:
            raise NotPlain("the state of MuJoCo plugins is not plain data")
        self.mujoco = mujoco.__version__
        arrays, rest = mjdata.read(data, path)
        self.arrays |= arrays
        return rest

    def value(self, value: Any, path: str, name: str) -> Any:
        """JSON of plain data. A dict in JSON always has one key, the kind of what it stands for."""
        kind = type(value)
        if kind is float and not np.isfinite(value):
            return {"float": repr(value)}
        if kind in (bool, int, float, str, type(None)):
            return value
        if kind is tuple:
            return {"tuple": self._items(value, path, name)}
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), path, name)}
        if kind not in (np.ndarray, list, dict, deque, np.random.Generator):
            raise NotPlain(
                f"{name} ({kind.__qualname__}) is not plain data; give its class "
                "snapshot() -> dict and restore(dict)"
            )
        owner = _owner(value)
        if type(owner) is not kind:
            raise NotPlain(f"{name} is a view of memory that NumPy does not own")
        first, known = self._seen.setdefault(id(owner), (path, value))
        if known is not value:
            raise NotPlain(f"{name} shares memory with another attribute")
        if first != path:
            return {"same": first}
        return self._mutable(value, path, name)

    def _mutable(self, value: Any, path: str, name: str) -> dict:
        kind = type(value)
        if kind is np.ndarray:
            return {"array": self._array(value, path, name)}
        if kind is list:
            return {"list": self._items(value, path, name)}
        if kind is deque:
            return {"deque": [value.maxlen, self._items(value, path, name)]}
        if kind is dict:
            keys = self._items(value.keys(), f"{path}/keys", name)
            return {"dict": [keys, self._items(value.values(), path, name)]}
        bits = value.bit_generator
        seed = bits.seed_seq  # what `spawn` continues from; not part of the state proper
        if type(bits).__name__ not in BIT_GENERATORS or type(seed) is not np.random.SeedSequence:
            raise NotPlain(f"{name} draws from a {type(bits).__qualname__} of unknown origin")
        return {"generator": self.value([bits.state, seed.state], f"{path}/state", name)}

    def _items(self, values: Any, path: str, name: str) -> list:
        return [self.value(v, f"{path}/{i}", name) for i, v in enumerate(list(values))]

    def _array(self, array: np.ndarray, path: str, name: str) -> str:
        if array.dtype.name not in DTYPES or not array.dtype.isnative:
            raise NotPlain(f"{name} is an array of {array.dtype}")
        self.arrays[path] = array.copy(order="C")
        return "F" if array.flags.fnc else "C"


class _Reader:
    """The inverse of `_Writer`; what two attributes shared, they share again."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._made: dict[str, Any] = {}

    def layer(self, layer: Any, saved: dict, path: str) -> None:
        name, state = type(layer).__qualname__, vars(layer)
        for key, label in saved["kept"].items():
            if _kept(state.get(key)) != label:
                raise UsageError(f"{name}.{key} was {label} in the snapshot and is not here")
        for key in saved["attributes"]:
            if key in FIXED or callable(getattr(type(layer), key, None)):
                raise UsageError(f"{name}.{key} is no state, but stands in the snapshot")
        if saved["own"] is not None:
            layer.restore(self.value(saved["own"], f"{path}/snapshot()"))
        else:
            for key in state.keys() - FIXED - saved["kept"].keys() - saved["attributes"].keys():
                delattr(layer, key)  # made by the reset before, not yet there in the snapshot
        for key, code in sorted(saved["attributes"].items()):
            self._attribute(layer, key, code, f"{path}/{key}")

    def _attribute(self, layer: gymnasium.Env, key: str, code: Any, path: str) -> None:
        kind = next(iter(code)) if isinstance(code, dict) else None
        if kind == "space":
            generators = self.value(code["space"], path)
            for space, generator in zip(parts(vars(layer)[key]), generators):
                space._np_random = generator
        elif kind == "mjdata":
            mjdata.write(vars(layer)[key], code["mjdata"], self._arrays, path)
        else:
            # Not setattr: `np_random` and the like are properties with side effects.
            vars(layer)[key] = self.value(code, path)

    def value(self, code: Any, path: str) -> Any:
        if not isinstance(code, dict):
            return code
        ((kind, body),) = code.items()
        match kind:
            case "same":
                return self._made[body]
            case "float":
                return float(body)
            case "tuple":
                return tuple(self._items(body, path))
            case "scalar":
                return self._arrays[path][()]
        made = self._made[path] = self._mutable(kind, body, path)
        # Filled after it is known, since it may hold itself.
        if kind in ("list", "deque"):
            made.extend(self._items(body if kind == "list" else body[1], path))
        elif kind == "dict":
            made.update(zip(self._items(body[0], f"{path}/keys"), self._items(body[1], path)))
        return made

    def _mutable(self, kind: str, body: Any, path: str) -> Any:
        if kind == "array":
            return np.array(self._arrays[path], order=body)
        if kind == "deque":
            return deque(maxlen=body[0])
        if kind == "generator":
            state, seed = self.value(body, f"{path}/state")
            # Positions in buffers, which NumPy would believe.
            at = [state.get("buffer_pos", 0) * 156, state["state"].get("pos", 0)]  # of 4, of 624
            if not all(0 <= int(place) <= 624 for place in at) or seed["pool_size"] > 64:
                raise UsageError("the state of a random generator points outside of its buffer")
            bits = BIT_GENERATORS[state["bit_generator"]](np.random.SeedSequence(**seed))
            bits.state = state
            return np.random.Generator(bits)
        return {"list": list, "dict": dict}[kind]()

    def _items(self, codes: list, path: str) -> list:
        return [self.value(code, f"{path}/{i}") for i, code in enumerate(codes)]


def _layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _saves_itself(layer: gymnasium.Env) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("snapshot", "restore"))


def _kept(value: Any) -> str | None:
    """Name of what belongs to the program and not to its state; None for anything else."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return value.__qualname__
    is_renderer = type(value).__module__.startswith("gymnasium.envs.mujoco.mujoco_rendering")
    if isinstance(value, EnvSpec) or _is_mujoco(value, "MjModel") or is_renderer:
        return type(value).__qualname__
    return None


def _is_mujoco(value: Any, name: str) -> bool:
    # By name, so that tasks without MuJoCo do not import it.
    return type(value).__name__ == name and type(value).__module__.split(".")[0] == "mujoco"


def _owner(value: Any) -> Any:
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return value
