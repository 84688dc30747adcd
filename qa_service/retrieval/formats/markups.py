"""The readers of markup and of plain text: each makes blocks of a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from qa_service.retrieval.blocks import Block, Kind, Parsed, without_invisible
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.html import parse_html
from qa_service.retrieval.formats.markdown import parse_markdown
from qa_service.retrieval.formats.rst import parse_rst

_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def parse_plain(text: str, whole: str | None) -> Parsed:
    """Cuts a text at its empty lines; lines stay lines."""
    title, body, line = split_front_matter(text)
    blocks, start = list[Block](), 0
    for gap in (*_EMPTY_LINES.finditer(body), None):
        end = gap.start() if gap else len(body)
        words = without_invisible(body[start:end]).strip("\n").rstrip()
        if words.strip():
            first = line + body.startswith("\n", start)
            blocks.append(Block(Kind.PARAGRAPH, words, first))
        if gap:
            line += body.count("\n", start, gap.end())
            start = gap.end()
    return Parsed(blocks, title)


MarkupReader = Callable[[str, str | None], Parsed]
"""Takes the markup, and the file that it is a part of; None if it is all of a file."""

MARKUPS: dict[str, MarkupReader] = {
    "text": parse_plain,
    "markdown": parse_markdown,
    "rst": parse_rst,
    "html": parse_html,
}

ENDINGS = {
    ".txt": "text",
    ".text": "text",
    ".adoc": "text",
    ".md": "markdown",
    ".mdx": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
}
"""The markup of files, by the end of their names."""

TEMPLATES = (".j2", ".jinja")
"""May stand behind another ending."""


def markup_of(name: str) -> str:
    """The markup of a file by its name, a key of `MARKUPS`; "" if it has none of them."""
    path = PurePath(name.lower() if PurePath(name).suffix else f"x{name.lower()}")
    if path.suffix in TEMPLATES:
        path = path.with_suffix("")
    return ENDINGS.get(path.suffix, "")


def parse(markup: str, format: str, whole: str | None = None) -> Parsed:
    """Makes blocks of a text.

    Args:
        format: A key of `MARKUPS`, or a file's name or ending.
        whole: The file that the text is a part of; None if it is all of it.
    """
    text = markup.removeprefix("\ufeff").replace("\0", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return MARKUPS[format if format in MARKUPS else markup_of(format)](text, whole)
