"""Texts that are indexed as they are: plain, Markdown, reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from qa_service.retrieval.documents import Document, Heading, shortened
from qa_service.retrieval.formats.bounded import read_text, titled

_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*")
_RST_LINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*")
_BOM = "\ufeff"
_MAX_LINE_CHARS = 1000
"""A longer line is no heading."""


def read_plain(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a text without headings."""
    yield titled(name, read_text(stream, max_bytes))


def read_markdown(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads Markdown; its markup stays in the text."""
    text = read_text(stream, max_bytes)
    yield titled(name, text, tuple(_markdown_headings(text)))


def read_rst(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads reStructuredText; its markup stays in the text."""
    text = read_text(stream, max_bytes)
    yield titled(name, text, tuple(_rst_headings(text)))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its start; of a long one, its first characters."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, text[start : min(end, start + _MAX_LINE_CHARS)].rstrip().lstrip(_BOM)
        start = end + 1


def _markdown_headings(text: str) -> Iterator[Heading]:
    fence = ""
    before, before_start = "", 0
    for start, line in _lines(text):
        if found := _FENCE.match(line):
            fence = _fence_after(fence, found[1])
        elif not fence and (heading := _ATX.fullmatch(line)):
            words = shortened(heading[2].rstrip("#"))
            if words:
                yield Heading(start, len(heading[1]), words)
        elif not fence and before and _SETEXT.fullmatch(line):
            yield Heading(before_start, 1 if "=" in line else 2, shortened(before))
        is_prose = not fence and line.strip() and not _ATX.match(line) and not _SETEXT.match(line)
        before, before_start = (line, start) if is_prose and line[0] not in ">|-*+" else ("", 0)


def _fence_after(fence: str, found: str) -> str:
    """What encloses the next lines: a fence ends with one as long, of the same sign."""
    if not fence:
        return found
    return "" if found.startswith(fence) else fence


def _rst_headings(text: str) -> Iterator[Heading]:
    levels: list[tuple[str, bool]] = []
    lines = [("", 0), ("", 0)]
    for start, line in _lines(text):
        (above, above_start), (title, title_start) = lines
        if _is_rst_heading(title, line):
            is_overlined = _RST_LINE.fullmatch(above) is not None and above == line
            style = (line[0], is_overlined)
            if style not in levels:
                levels.append(style)
            place = above_start if is_overlined else title_start
            yield Heading(place, levels.index(style) + 1, shortened(title))
            lines = [("", 0), ("", 0)]  # an underline is not the next heading's overline
        else:
            lines = [lines[1], (line, start)]


def _is_rst_heading(title: str, line: str) -> bool:
    return (
        bool(title.strip())
        and not _RST_LINE.fullmatch(title)
        and _RST_LINE.fullmatch(line) is not None
        and len(line) >= len(title.strip())
    )
