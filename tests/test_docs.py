"""The documents say what the code does: blocks run, commands parse, links resolve, tables agree."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rescore import Anneal, cli
from rescore.algorithms import REGISTRY, find, presets_of
from rescore.algorithms.posterior_actor import PosteriorSettings
from rescore.models.critics import CriticSettings
from rescore.training.config import configure

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOT_RUN = "<!-- not run -->"
REQUIRED = "required"
NO_EFFECT = "–"  # of a setting that nothing reads under a preset
SHORT = {"README.md": 150, "docs/performance.md": 100}  # lines at most
NESTED = (Anneal, CriticSettings, PosteriorSettings)  # settings that are values of others


class Block(NamedTuple):
    """A fenced block, the line of its fence, and the line of text before it."""

    language: str
    line: int
    before: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    found, lines = [], page.read_text().splitlines()
    start = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        before = next((text for text in reversed(lines[:start]) if text.strip()), "")
        text = "\n".join(lines[start + 1 : i]) + "\n"
        found.append(Block(lines[start][3:].strip(), start + 1, before, text))
        start = None
    assert start is None, f"{name(page)}, line {start + 1}: the block does not end"
    return [block for block in found if block.language in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks and code spans."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


RUNNABLE = [
    page for page in PAGES if any(block.before != NOT_RUN for block in blocks(page, "python"))
]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page):
    for block in blocks(page, "python"):
        ast.parse(block.text, f"{name(page)}, line {block.line}")


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page share their names, from top to bottom, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page, "python"):
        if block.before != NOT_RUN:
            # Padded, so that a traceback shows the line of the page.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, vars(module))


def shell_lines(page: Path) -> list[str]:
    text = "".join(block.text for block in blocks(page, "sh", "bash", "console"))
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_commands_are_understood():
    found = 0
    for page in PAGES:
        for line in shell_lines(page):
            words = shlex.split(line, comments=True)
            if words[:1] != ["rescore"]:
                continue
            found += 1
            assert words[1] in cli.COMMANDS, f"{name(page)}: {line}"
            form, args, called = cli.form_of(words[1], words[2:])
            if "--help" not in args:
                cli.parse(form, args, called)
    assert found > 10


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        spans = re.findall(r"`(make [^`\n]+)`", page.read_text())
        for line in [*shell_lines(page), *spans]:
            if line.startswith("make "):
                assert line.split()[1] in targets, f"{name(page)}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.is_relative_to(ROOT) and place.exists(), f"{name(page)}: {target}"
        if anchor:
            assert anchor in anchors(place), f"{name(page)}: {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_every_page_can_be_reached():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#]+\.md)", prose(page))
        linked = [(page.parent / t).resolve() for t in targets if ":" not in t]
        waiting += [other for other in linked if other not in seen and other.exists()]
    assert set(PAGES) - seen == set()


def tables(page: Path, mark: str) -> list[tuple[str, list[list[str]]]]:
    """What `<!-- mark: subject -->` names, and the rows of the table after it."""
    found = []
    for match in re.finditer(rf"<!-- {mark}: (\S+) -->\n+((?:\|.*\n)+)", page.read_text()):
        rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in match[2].splitlines()
        ]
        found.append((match[1], [rows[0], *rows[2:]]))
    return found


def value(cell: str) -> Any:
    """What a cell of code stands for."""
    return eval(cell.strip("`"), {cls.__name__: cls for cls in NESTED})


MARKED = [page for page in PAGES if tables(page, "fields") or tables(page, "presets")]


def own_fields(cls: type) -> list[dataclasses.Field]:
    """What a class declares itself, new or with another default, in its order."""
    every = {field.name: field for field in dataclasses.fields(cls)}
    return [every[field] for field in inspect.get_annotations(cls) if field in every]


@pytest.mark.parametrize("page", MARKED, ids=name)
def test_tables_of_fields_are_complete(page):
    """A table has the own fields of a class; those of its bases have their table elsewhere."""
    for subject, (_, *rows) in tables(page, "fields"):
        module, _, cls = subject.rpartition(".")
        fields = own_fields(getattr(importlib.import_module(module), cls))
        assert [row[0] for row in rows] == [f"`{field.name}`" for field in fields], subject
        for field, (_, default, meaning) in zip(fields, rows):
            if field.default is dataclasses.MISSING:
                assert default == REQUIRED, f"{subject}.{field.name}"
            else:
                assert value(default) == field.default, f"{subject}.{field.name}"
            assert meaning, f"{subject}.{field.name}"


@pytest.mark.parametrize("page", MARKED, ids=name)
def test_tables_of_presets_are_complete(page):
    for algorithm, (head, *rows) in tables(page, "presets"):
        names = [cell.strip("`") for cell in head[1:]]
        assert names == list(presets_of(algorithm))
        settings, idle = {}, {}
        for preset in names:
            algo, training = configure(algorithm, preset, {}, {})
            idle[preset] = getattr(algo, "without_effect", ())
            settings[preset] = {
                field.name: getattr(config, field.name)
                for config in (algo, training)
                for field in dataclasses.fields(config)
            }
        differs = [
            field
            for field, first in settings[names[0]].items()
            if any(settings[preset][field] != first for preset in names)
        ]
        assert [row[0] for row in rows] == [f"`{field}`" for field in differs]
        for field, *cells in rows:
            for preset, cell in zip(names, cells):
                name, where = field.strip("`"), f"{preset}: {field}"
                assert (cell == NO_EFFECT) == (name in idle[preset]), where
                if cell != NO_EFFECT:
                    assert value(cell) == settings[preset][name], where


def test_every_algorithm_has_its_tables():
    """A page of an algorithm cannot leave out the tables that the tests above compare."""
    for algorithm, (module, cls, _) in REGISTRY.items():
        page = ROOT / "docs" / "algorithms" / f"{algorithm}.md"
        assert f"{module}.{cls}" in [subject for subject, _ in tables(page, "fields")]
        assert algorithm in [subject for subject, _ in tables(page, "presets")]
        assert f"(docs/algorithms/{algorithm}.md)" in (ROOT / "README.md").read_text()


def test_every_hyperparameter_is_documented_once():
    subjects = [subject for page in PAGES for subject, _ in tables(page, "fields")]
    assert len(subjects) == len(set(subjects))
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in NESTED} <= set(subjects)
    for algorithm in REGISTRY:
        bases = [cls for cls in find(algorithm).__mro__ if dataclasses.is_dataclass(cls)]
        assert {f"{cls.__module__}.{cls.__qualname__}" for cls in bases} <= set(subjects)


def test_the_first_pages_stay_short():
    lines = {page: len((ROOT / page).read_text().splitlines()) for page in SHORT}
    assert all(lines[page] <= most for page, most in SHORT.items()), lines


def test_nothing_is_left_to_fill_in_once_it_is_released():
    """Marks of missing numbers may stand while the newest version is unreleased, and not after."""
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    missing = [name(page) for page in PAGES if "<!-- number:" in page.read_text()]
    assert "unreleased" in newest.lower() or not missing, missing


def test_every_page_is_in_the_site_and_its_links_stay_inside():
    docs, yaml = ROOT / "docs", pytest.importorskip("yaml")
    from benchmarks.site_links import on_page_markdown

    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [page for part in inner for page in pages(part)]

    shown = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = {str(p.relative_to(docs)) for p in docs.rglob("*.md")}
    assert sorted(shown) == sorted(page for page in there if not page.startswith("adr/"))
    for page in there:
        at = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=page))
        text = on_page_markdown((docs / page).read_text(), page=at)
        for link in re.findall(r"\]\(((?!https?:)[^)#]+)", text):
            target = (docs / page).parent.joinpath(link).resolve()
            assert target.is_relative_to(docs), f"{page} leads outside: {link}"
