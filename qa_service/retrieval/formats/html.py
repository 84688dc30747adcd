"""The text of HTML: what a reader sees, block by block, without scripts and styles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import BinaryIO

from qa_service.retrieval.documents import Document, Heading, shortened
from qa_service.retrieval.formats.bounded import read_text, titled

_HIDDEN = frozenset({"script", "style", "template", "noscript", "svg", "math", "select", "iframe"})
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table",
    "title", "tr", "ul",
})  # fmt: skip
_LEVELS = {f"h{level}": level for level in range(1, 7)}
_GAPS = ("", " ", "\n", "\n\n")
_SPACE, _LINE, _BLOCK = 1, 2, 3
_RUN = re.compile(r"\s+")


def read_html(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads HTML in UTF-8; offsets are those of the text without markup."""
    page = _Page()
    page.feed(read_text(stream, max_bytes))
    page.close()
    yield titled(name, "".join(page.parts), tuple(page.headings), page.title)


class _Page(HTMLParser):
    """Collects a page's text, in parts, its headings and its title."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.title = ""
        self._length = 0
        self._gap = 0
        self._hidden = ""
        self._preformatted = 0
        self._heading: tuple[str, int] | None = None
        """The tag of an open heading, and the number of parts before it."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            return
        if tag in _HIDDEN or tag == "title":
            self._hidden = tag
        elif tag == "br":
            self._gap = max(self._gap, _LINE)
        elif tag in {"td", "th"}:
            self._gap = max(self._gap, _SPACE)
        self._end_block(tag)
        if tag in _LEVELS:
            self._heading = (tag, len(self.parts))
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden = "" if tag == self._hidden else self._hidden
            return
        if self._heading and self._heading[0] == tag:
            self._add_heading()
        self._end_block(tag)
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._hidden == "title":
            self.title = shortened(f"{self.title} {data[:1000]}")
        elif not self._hidden and self._preformatted:
            self._add(data)
        elif not self._hidden:
            self._add_words(data)

    def _end_block(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._gap = max(self._gap, _LINE if tag in {"li", "tr"} else _BLOCK)

    def _add_words(self, data: str) -> None:
        if data[:1].isspace():
            self._gap = max(self._gap, _SPACE)
        if words := _RUN.sub(" ", data).strip():
            self._add(words)
            if data[-1].isspace():
                self._gap = _SPACE

    def _add(self, words: str) -> None:
        part = (_GAPS[self._gap] if self._length else "") + words
        self._gap = 0
        self.parts.append(part)
        self._length += len(part)

    def _add_heading(self) -> None:
        assert self._heading is not None
        tag, first = self._heading
        self._heading = None
        words = "".join(self.parts[first:])
        if line := shortened(words):
            start = self._length - len(words.lstrip())
            self.headings.append(Heading(start, _LEVELS[tag], line))
