"""Numbers, durations and tables as text: one way each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def number(value: float) -> str:
    """8,912 or 43.1 or 0.00123: thousands separated, else three significant digits."""
    if math.isfinite(value) and 1000 <= abs(round(value)) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def steps(value: float) -> str:
    """A count in few letters: 900, 400k, 1.25M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:,.4g}{letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """1 h 05 m, 12 m 30 s or 43 s."""
    if not 0 <= seconds < math.inf:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02d} m"
    return f"{minutes} m {rest:02d} s" if minutes else f"{rest} s"


def pack(parts: Sequence[str], separator: str, width: int) -> list[str]:
    """The parts on as few lines as the width allows, broken only between parts."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{separator}{part}" if lines else part
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]], aligned: bool = False) -> str:
    """A table in Markdown; aligned, its columns line up on a screen too."""
    lines, rule = [head, *rows], "|---" * len(head) + "|"
    if aligned:
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines = [[text.ljust(width) for text, width in zip(line, widths)] for line in lines]
        rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, rule, *others])
