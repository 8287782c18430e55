"""A document of sections with text, tables and figures, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rescore.show.text import table


class Entry(NamedTuple):
    """An entry of a table: its number, smaller lines below it, and the section of its rows."""

    text: str
    below: tuple[str, ...] = ()
    section: str = ""  # title of the section it leads to
    file: str = ""  # or a file, relative to the document
    strong: bool = False


class Table(NamedTuple):
    """Rows below a head; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]


class Figure(NamedTuple):
    """A drawing in figures/NAME.svg and .png."""

    name: str
    alt: str
    svg: str


class Gallery(NamedTuple):
    """Figures beside each other where there is room."""

    figures: Sequence[Figure]


Block = str | Table | Figure | Gallery


class Section(NamedTuple):
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]
    level: int = 2


class Document(NamedTuple):
    """All of a report."""

    title: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


MISSING = Entry("missing")


def anchor(title: str) -> str:
    """A section's address, as Markdown readers make it."""
    return re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")


def escaped(text: str) -> str:
    """Text of rows, in which Markdown would see tables, links or HTML."""
    return re.sub(r"([\\|<>`]|\](?=\())", r"\\\1", " ".join(text.split()))


def markdown(document: Document) -> str:
    """The document as one Markdown text."""
    lines = [f"# {escaped(document.title)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(value)} |" for name, value in document.facts]
    for section in document.sections:
        lines += ["", f"{'#' * section.level} {escaped(section.title)}"]
        for block in section.blocks:
            lines += ["", *markdown_block(block)]
    return "\n".join(lines) + "\n"


def markdown_block(block: Block) -> list[str]:
    if isinstance(block, str):
        return [escaped(block)]
    if isinstance(block, Figure):
        return [f"![{escaped(block.alt)}](figures/{block.name}.png)"]
    if isinstance(block, Gallery):
        return [line for figure in block.figures for line in (*markdown_block(figure), "")][:-1]
    head = [*map(escaped, block.head)]
    return [table(head, [[*map(markdown_entry, row)] for row in block.rows])]


def markdown_entry(entry: Entry) -> str:
    text = f"**{escaped(entry.text)}**" if entry.strong else escaped(entry.text)
    target = f"#{anchor(entry.section)}" if entry.section else entry.file
    text = f"[{text}]({target})" if target else text
    return "<br>".join([text, *map(escaped, entry.below)])
