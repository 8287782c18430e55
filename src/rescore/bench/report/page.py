"""A document as one page of HTML that needs nothing else: styles and drawings are inside."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from rescore.bench.report.document import Block, Document, Entry, Figure, Gallery, Section, anchor
from rescore.bench.report.plots import themed


def page(document: Document) -> str:
    """The document as HTML."""
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in document.facts
    )
    chapters = [section for section in document.sections if section.level == 2]
    links = "".join(f'<a href="#{anchor(s.title)}">{escape(s.title)}</a>' for s in chapters)
    style = (files("rescore.bench") / "data" / "report.css").read_text("utf-8")
    body = "\n".join(map(section_html, document.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(document.title)}</h1><dl>{facts}</dl></header>\n"
        f"<nav>{links}</nav>\n<main>\n{body}\n</main>\n"
        "<footer>Made by <code>rescore report</code> from recorded rows.</footer>\n"
        "</body>\n</html>\n"
    )


def section_html(section: Section) -> str:
    tag = f"h{section.level}"
    head = f'<{tag} id="{anchor(section.title)}">{escape(section.title)}</{tag}>'
    return "\n".join([head, *map(block_html, section.blocks)])


def block_html(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, Figure):
        return figure_html(block, "alone")
    if isinstance(block, Gallery):
        inside = "".join(figure_html(figure) for figure in block.figures)
        return f'<div class="gallery">{inside}</div>'
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in block.head)
    rows = "".join(
        "<tr>" + "".join(map(entry_html, row, range(len(row)))) + "</tr>" for row in block.rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def figure_html(figure: Figure, style: str = "") -> str:
    drawing = themed(figure.svg)
    return (
        f'<figure class="{style}" role="img" aria-label="{escape(figure.alt)}">{drawing}</figure>'
    )


def entry_html(entry: Entry, column: int) -> str:
    target = f"#{anchor(entry.section)}" if entry.section else entry.file
    text = escape(entry.text)
    text = f'<a href="{escape(target)}">{text}</a>' if target else text
    text += "".join(f"<small>{escape(line)}</small>" for line in entry.below)
    if column == 0:
        return f'<th scope="row">{text}</th>'
    style = "best" if entry.strong else "missing" if entry.text == "missing" else ""
    return f'<td class="{style}">{text}</td>' if style else f"<td>{text}</td>"
