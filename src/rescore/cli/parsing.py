"""Words into a form, with complaints of one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from typing import Any

from rescore.core import UsageError, did_you_mean, one_line

ELSEWHERE = "see --help for what there is"


def parse(form: type, args: list[str], prog: str) -> Any:
    """tyro's parser, with its complaints as one line."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            filled: Any = tyro.cli(form, args=args, prog=prog, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{complaint(said.getvalue())} (see `{prog} --help`)") from None
    value, unknown = filled
    if unknown:
        flags = ["--" + f.name.replace("_", "-") for f in every_field(form)]
        hint = did_you_mean(unknown[0], flags, ELSEWHERE)
        raise UsageError(f"unknown argument {unknown[0]!r} of `{prog}`: {hint}")
    return value


def complaint(box: str) -> str:
    """The complaint inside the box that tyro draws."""
    text = re.sub(r"[\u2500-\u257f]+|-{4,}", " ", one_line(box))
    text = re.sub(r"(Argument helptext|For full helptext).*", "", text)
    text = re.sub(r"^\s*(Value error|Invalid choice|Parsing error|Required options)", "", text)
    return one_line(text).rstrip(".")


def every_field(form: type) -> list[dataclasses.Field]:
    """Fields of a form and of the dataclasses inside it."""
    found = []
    for field in dataclasses.fields(form):
        found.append(field)
        inner = field.default if dataclasses.is_dataclass(field.default) else field.type
        inner = getattr(inner, "__origin__", inner)
        if dataclasses.is_dataclass(inner):
            found += dataclasses.fields(inner)
    return found
