"""The site's links: what lies outside docs/ is not part of it, so such links become plain text."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:src|results|examples|benchmarks|tests|CHANGELOG|CONTRIBUTING|SECURITY|pyproject)[^)]*\)"
)
README = re.compile(r"\]\(((?:\.\./)+)README\.md(?:#[\w-]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = OUTSIDE.sub(r"\1", markdown)
    depth = page.file.src_uri.count("/")
    return README.sub(f"]({'../' * depth}index.md)", markdown)
