"""The shape of the library: who imports whom, what may live where, what every algorithm brings."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import rescore
from rescore.algorithms import REGISTRY, find, presets_of
from rescore.training.config import configure

PACKAGE = Path(rescore.__file__).parent
DOCS = PACKAGE.parents[1] / "docs"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_ALGORITHM_LINES = 120

# Room -> rooms it may import from, besides itself, at the top of a file or inside a function.
# A room is a folder or a file of the package; CONTRIBUTING.md draws the same arrows.
ROOMS = {
    "core": set(),
    "streams": set(),
    "diffusion": {"core", "streams"},
    "models": {"core", "streams", "diffusion"},
    "algorithms": {"core", "streams", "diffusion", "models"},
    "envs": {"core", "streams"},
    "files": {"core"},
    "show": {"core", "files"},
    "training": {"core", "streams", "algorithms", "envs", "files", "show"},
    "boltzmann": {"core", "streams", "diffusion", "models", "files", "show"},
}
ROOMS["export"] = {"core", "streams", "algorithms", "files", "training"}
ROOMS["agent"] = {*ROOMS["training"], "training", "export"}
ROOMS["bench"] = {*ROOMS["agent"], "agent"}
ROOMS["cli"] = {*ROOMS["bench"], "bench", "boltzmann"}
ROOMS["__main__"] = {"cli"}
ROOMS["__init__"] = {*ROOMS["agent"], "agent", "diffusion", "models"}

# Transforms belong to training, with or without environments; these are the mathematics itself.
TRAINING = {"training", "boltzmann"}
TRANSFORMS = {"jit", "vmap", "pmap", "scan", "donate_argnums", "donate_argnames"}
OUTSIDE_TRAINING = {
    "diffusion/samplers.py": {"scan"},
    "models/critics.py": {"vmap"},
    "models/gaussian_critics.py": {"vmap"},
    "diffusion/chain.py": {"scan"},
    "algorithms/policy_gradient.py": {"scan"},
    "algorithms/dipo.py": {"scan"},
    "algorithms/on_policy.py": {"scan"},
    "export/__init__.py": {"jit"},
}


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room(path: Path) -> str:
    return Path(name(path)).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), name(path))


def imports(node: ast.AST, typing_too: bool = True) -> Iterator[str]:
    """Dotted names that are imported, in functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif typing_too or not is_typing_block(child):
            yield from imports(child, typing_too)


def is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_one_way(path):
    here = room(path)
    assert here in ROOMS, f"{here} is a new room: say in ROOMS what it may import"
    for module in imports(tree(path)):
        top, _, rest = module.partition(".")
        if top == "rescore" and rest:
            # A public name counts as the room it lives in; `__version__` lives in none.
            other = rescore._HOME.get(rest, module).split(".")[1]
            assert other in {here, "__version__", *ROOMS[here]}, f"{name(path)} imports {module}"


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_rooms_and_no_modules_import_each_other():
    """In functions, too; only annotations may look back."""
    TopologicalSorter(ROOMS).prepare()  # raises CycleError
    assert ROOMS.keys() == {room(path) for path in FILES}
    modules = {dotted(path): path for path in FILES}
    graph = {}
    for module, path in modules.items():
        # `from package import module` means the module, `from module import name` its module.
        found = {m if m in modules else m.rpartition(".")[0] for m in imports(tree(path), False)}
        graph[module] = found & modules.keys()
        if room(path) == "cli" and module != "rescore.cli":
            assert "rescore.cli" not in found, f"{module} imports the dispatcher"
            toys = any(m.startswith("rescore.boltzmann") for m in found)
            assert not toys or path.stem == "toy", f"{module} imports the toy library"
    TopologicalSorter({m: rest - {m} for m, rest in graph.items()}).prepare()


def test_what_may_not_be_imported():
    for path in FILES:
        tops = {module.partition(".")[0] for module in imports(tree(path))}
        assert not tops & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, path
        if room(path) == "algorithms":
            assert "numpy" not in tops, name(path)
        if room(path) == "envs":
            assert not tops & {"jax", "optax", "equinox"}, name(path)
    core = {m.partition(".")[0] for m in imports(tree(PACKAGE / "core.py"), typing_too=False)}
    assert core <= {"__future__", "collections", "difflib", "re", "typing"}


def test_no_drawer_for_odds_and_ends():
    names = {path.stem for path in FILES}
    assert not names & {"utils", "util", "helpers", "helper", "misc", "common"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_transforms_belong_to_training(path):
    if room(path) in TRAINING:
        return
    nodes = list(ast.walk(tree(path)))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.arg for node in nodes if isinstance(node, ast.keyword)}
    used |= {module.rpartition(".")[2] for module in imports(tree(path))}
    assert used & TRANSFORMS <= OUTSIDE_TRAINING.get(name(path), set())


def test_import_stays_light():
    """Nothing heavy at the top of the modules that start-up needs."""
    for file in ("__init__.py", "core.py", "streams.py", "cli/__init__.py", "envs/__init__.py"):
        body = tree(PACKAGE / file).body
        top = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        tops = {module.partition(".")[0] for module in imports(ast.Module(top, []))}
        assert not tops & {"jax", "optax", "equinox", "gymnasium", "mujoco", "matplotlib"}, file


STUB = PACKAGE / "__init__.pyi"


def stub() -> str:
    """The public names for type checkers, which cannot follow a lazy import."""
    lines = ["# Written by `make golden` from the table in __init__.py.", ""]
    lines += sorted(f"from {home} import {name} as {name}" for name, home in rescore._HOME.items())
    return "\n".join([*lines, "", "__version__: str", ""])


def test_public_names_exist():
    for public in rescore.__all__:
        assert getattr(rescore, public) is not None
    assert sorted(rescore.__all__) == dir(rescore)
    assert STUB.read_text() == stub(), "run `make golden`"


def resolve(dotted: str) -> object:
    """The module, class, function or field that a dotted name means."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            known = {f.name for f in fields(found)} if is_dataclass(found) else set()
            found = getattr(found, part, None) if part not in known else part
            if found is None:
                raise AttributeError(f"{dotted} does not exist")
        return found
    raise AttributeError(f"{dotted} does not exist")


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: p.stem)
def test_names_in_the_documents_exist(page):
    for dotted in re.findall(r"`(rescore(?:\.\w+)+)`", page.read_text()):
        resolve(dotted)


def test_the_map_from_the_paper_is_not_empty():
    names = re.findall(r"`(rescore(?:\.\w+)+)`", (DOCS / "paper-to-code.md").read_text())
    assert len(set(names)) > 30
    with pytest.raises(AttributeError):
        resolve("rescore.diffusion.process.nothing")


@pytest.mark.parametrize("algorithm", REGISTRY)
def test_what_an_algorithm_brings(algorithm):
    module, _, what = REGISTRY[algorithm]
    file = Path(importlib.import_module(module).__file__)
    assert file == PACKAGE / "algorithms" / f"{algorithm}.py" and what
    assert (DOCS / "algorithms" / f"{algorithm}.md").exists()
    lines = len(file.read_text().splitlines())
    assert lines <= MAX_ALGORITHM_LINES, f"{name(file)} has {lines} lines"
    assert "default" in presets_of(algorithm)
    for preset, content in presets_of(algorithm).items():
        algo, _ = configure(algorithm, preset, {}, {})
        assert type(algo) is find(algorithm) and content.source


@pytest.mark.parametrize("algorithm", REGISTRY)
def test_nothing_implemented_is_overridden(algorithm):
    """No algorithm below another, and no method of a base replaced."""
    line = [cls for cls in find(algorithm).__mro__ if cls.__module__.startswith("rescore.")]
    assert not {find(other) for other in REGISTRY} & set(line[1:])
    # Of a diffusion actor-critic: another kind of policy, or of critic.
    hooks = {"init_actor", "sample", "candidates", "clone", "imitate"}
    for at, base in enumerate(line):
        shared = {n for n in vars(base) if callable(getattr(base, n)) and not n.startswith("__")}
        shared -= hooks
        assert not any(shared & set(vars(below)) for below in line[:at])


if __name__ == "__main__":
    STUB.write_text(stub())
