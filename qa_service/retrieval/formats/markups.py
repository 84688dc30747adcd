"""The readers of markup: each makes blocks of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from qa_service.retrieval.blocks import Parsed
from qa_service.retrieval.formats.html import parse_html
from qa_service.retrieval.formats.markdown import parse_markdown
from qa_service.retrieval.formats.plain import parse_plain
from qa_service.retrieval.formats.rst import parse_rst

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


def reader_of(format: str) -> MarkupReader:
    """The reader of a markup, named by itself or by a file's name or ending."""
    return MARKUPS[format if format in MARKUPS else markup_of(format)]


def parse(markup: str, format: str, whole: str | None = None) -> Parsed:
    """Makes blocks of a text.

    Args:
        format: A key of `MARKUPS`, or a file's name or ending.
        whole: The file that the text is a part of; None if it is all of it.
    """
    text = markup.removeprefix("\ufeff").replace("\0", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return reader_of(format)(text, whole)
