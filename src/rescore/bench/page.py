"""A document as one page of HTML that needs nothing else: styles and drawings are inside."""

from __future__ import annotations

from html import escape

from rescore.bench.document import Block, Cell, Document, Figure, Gallery, Section, anchor
from rescore.bench.plots import themed

STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1d1d20;
  --soft: #63636b; --line: #e3e3e6; --grid: #e6e6ea; --accent: #0063a6; --best: #e8f2ea;
  --chart: #1d1d20; }
@media (prefers-color-scheme: dark) { :root { --page: #131417; --card: #1b1c20; --ink: #e9e9ec;
  --soft: #a0a0aa; --line: #303138; --grid: #2c2d33; --accent: #6db8f2; --best: #1d3226;
  --chart: #d6d6db; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header, nav { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: 0 0 20px;
  letter-spacing: -0.01em; }
h2 { font-size: 1.3rem; margin: 48px 0 8px; letter-spacing: -0.005em; }
h3 { font-size: 1.05rem; margin: 28px 0 6px; }
p { max-width: 72ch; margin: 8px 0 14px; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
nav { padding-top: 18px; display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 0.92rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 1px;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden;
  margin: 0; }
dl div { box-shadow: 0 0 0 1px var(--line); padding: 10px 14px; }
dt { color: var(--soft); font-size: 0.8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; font-size: 0.95rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tr:last-child th, tr:last-child td { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; font-size: 0.8rem; }
th:first-child { position: sticky; left: 0; background: var(--card); text-align: left; z-index: 1;
  box-shadow: 1px 0 0 var(--line); }
td.best { background: var(--best); font-weight: 650; }
td a { color: inherit; }
td.missing { color: var(--soft); font-style: italic; }
small { display: block; color: var(--soft); font-weight: 400; font-size: 0.76rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px; color: var(--chart); }
figure svg { display: block; width: 100%; height: auto; }
figure.alone { max-width: 760px; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr));
  gap: 14px; }
main > .scroll, main > figure, main > .gallery { margin-top: 14px; }
footer { max-width: 1120px; margin: 56px auto 40px; padding: 0 20px; color: var(--soft);
  font-size: 0.85rem; }
"""


def page(document: Document) -> str:
    """The document as HTML."""
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in document.facts
    )
    chapters = [section for section in document.sections if section.level == 2]
    links = "".join(f'<a href="#{anchor(s.title)}">{escape(s.title)}</a>' for s in chapters)
    body = "\n".join(map(section_html, document.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
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
        "<tr>" + "".join(map(cell_html, row, range(len(row)))) + "</tr>" for row in block.rows
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


def cell_html(cell: Cell, column: int) -> str:
    target = f"#{anchor(cell.section)}" if cell.section else cell.file
    text = escape(cell.text)
    text = f'<a href="{escape(target)}">{text}</a>' if target else text
    text += "".join(f"<small>{escape(line)}</small>" for line in cell.below)
    if column == 0:
        return f'<th scope="row">{text}</th>'
    style = "best" if cell.strong else "missing" if cell.text == "missing" else ""
    return f'<td class="{style}">{text}</td>' if style else f"<td>{text}</td>"
