"""Markdown, by markdown-it-py: CommonMark with GitHub's tables and boxes, HTML within it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.deflist import deflist_plugin

from qa_service.retrieval.blocks import BlockList, Kind, Parsed, folded
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.html import parse_into
from qa_service.retrieval.formats.markdown_source import BOX_MARK, RST_CODE, clean
from qa_service.retrieval.formats.rst import parse_rst_into
from qa_service.retrieval.formats.scripts import lowered, raised

_DEFINITION = re.compile(r"^ {0,3}\[(?P<label>[^\]\n]+)\]:[ \t]*\S", re.MULTILINE)
_REFERENCE = re.compile(r"\]\[(?P<label>[^\]\n]+)\]")
_ALERT = re.compile(r"\[!(?P<name>\w+)\][+-]?[ \t]*(?:\n|$)")
_MARKS = re.compile(r"`|\]\(|\*\*")
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_STRUCK = frozenset({"del", "s", "strike"})
_TAG = re.compile(r"</?(?P<name>[a-zA-Z][a-zA-Z0-9]*)")


def parse_markdown(text: str, whole: str | None) -> Parsed:
    """Reads Markdown of any dialect.

    Args:
        whole: The file that it is a part of, whose definitions of links count.
    """
    title, body, first_line = split_front_matter(text)
    source = clean(body, first_line)
    env = {"references": {} if whole is None else _references(text, whole)}
    tokens = _parser().parse("\n".join(source.lines), env)
    reader = _Reader(source.numbers)
    reader.read(tokens)
    return Parsed(reader.out.blocks, title)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser.use(deflist_plugin)


def _references(text: str, whole: str) -> dict[str, dict[str, str]]:
    """The labels of a part of a file: those that the file defines, and those behind a text."""
    labels = [found["label"] for found in _DEFINITION.finditer(whole)]
    labels += [found["label"] for found in _REFERENCE.finditer(text)]
    return {" ".join(label.split()).lower().upper(): {"href": "", "title": ""} for label in labels}


class _Reader:
    """Makes blocks of markdown-it's tokens."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.out = BlockList()
        self._numbers = numbers
        self._kinds: list[str] = []
        self._head: list[str] = []
        self._rows: list[tuple[int, list[str]]] = []
        self._term = ""

    def read(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            handler = _HANDLERS.get(token.type)
            if handler:
                handler(self, token)

    def _line(self, token: Token) -> int:
        return self._numbers[min(token.map[0], len(self._numbers) - 1)] if token.map else 0

    def _begin(self, token: Token) -> None:
        self._kinds.append(token.type)
        self._heading_level = int(token.tag[1]) if token.type == "heading_open" else 0

    def _begin_quote(self, token: Token) -> None:
        self._kinds.append(token.type)

    def _end(self, token: Token) -> None:
        self._kinds.pop()

    def _begin_list(self, token: Token) -> None:
        self.out.begin_list()

    def _end_list(self, token: Token) -> None:
        self.out.end_list()

    def _begin_item(self, token: Token) -> None:
        self.out.begin_item(f"{token.info}." if token.info else "-")

    def _end_item(self, token: Token) -> None:
        self.out.end_item()

    def _begin_definition(self, token: Token) -> None:
        self.out.begin_item("")
        if self._term:
            self.out.prefix(f"{self._term.rstrip(':')}: ")
            self._term = ""

    def _inline(self, token: Token) -> None:
        text = _text(token.children or ())
        kind = self._kinds[-1]
        if kind == "heading_open":
            self.out.heading(self._heading_level, text, self._line(token))
        elif kind == "paragraph_open":
            self._paragraph(text, self._line(token))
        elif kind == "th_open":
            self._head.append(text)
        elif kind == "td_open":
            self._rows[-1][1].append(text)
        elif kind == "dt_open":
            self._term = text

    def _paragraph(self, text: str, line: int) -> None:
        if text.startswith(BOX_MARK):
            self.out.prefix(f"{text[1:].strip()} ")
            return
        if text.startswith("[") and (alert := _ALERT.match(text)):
            self.out.prefix(f"{alert['name'].capitalize()}: ")
            text = text[alert.end() :]
        elif text.startswith("[") and (task := _TASK.match(text)):
            text = text[task.end() :]
        self.out.paragraph(text, line)

    def _code(self, token: Token) -> None:
        line = self._line(token) + (token.type == "fence")
        if token.info == RST_CODE:
            parse_rst_into(self.out, token.content, line)
        else:
            self.out.code(token.content, line)

    def _html(self, token: Token) -> None:
        numbers = self._numbers[token.map[0] : token.map[1]] if token.map else ()
        place = len(self.out.blocks)
        parse_into(self.out, token.content, numbers)
        for at, block in enumerate(self.out.blocks[place:], place):
            if block.kind is not Kind.CODE and _MARKS.search(block.text):
                self.out.blocks[at] = block._replace(text=_shown(block.text))

    def _begin_table(self, token: Token) -> None:
        self._head, self._rows = [], []

    def _begin_row(self, token: Token) -> None:
        self._rows.append((self._line(token), []))

    def _end_table(self, token: Token) -> None:
        self.out.table(self._head, [row for row in self._rows if row[1]])


_HANDLERS = {
    "heading_open": _Reader._begin,
    "paragraph_open": _Reader._begin_quote,
    "th_open": _Reader._begin_quote,
    "td_open": _Reader._begin_quote,
    "dt_open": _Reader._begin_quote,
    "heading_close": _Reader._end,
    "paragraph_close": _Reader._end,
    "th_close": _Reader._end,
    "td_close": _Reader._end,
    "dt_close": _Reader._end,
    "bullet_list_open": _Reader._begin_list,
    "ordered_list_open": _Reader._begin_list,
    "dl_open": _Reader._begin_list,
    "bullet_list_close": _Reader._end_list,
    "ordered_list_close": _Reader._end_list,
    "dl_close": _Reader._end_list,
    "list_item_open": _Reader._begin_item,
    "list_item_close": _Reader._end_item,
    "dd_open": _Reader._begin_definition,
    "dd_close": _Reader._end_item,
    "inline": _Reader._inline,
    "fence": _Reader._code,
    "code_block": _Reader._code,
    "html_block": _Reader._html,
    "table_open": _Reader._begin_table,
    "tr_open": _Reader._begin_row,
    "table_close": _Reader._end_table,
}


def _shown(markup: str) -> str:
    """What Markdown within HTML shows, of which only the inline markup is left."""
    (token,) = _parser().parseInline(markup)
    return folded(_text(token.children or ())) or markup


def _text(children: Iterable[Token]) -> str:
    """What inline markup shows; nothing of what is struck out."""
    parts: list[str] = []
    opened: list[tuple[str, int]] = []
    """Open `<sup>`, `<sub>` and what is struck out, and how many parts are before each."""
    for token in children:
        if token.type in {"text", "code_inline", "text_special"}:
            parts.append(token.content)
        elif token.type == "softbreak":
            parts.append("\n" if len(parts) == 1 and parts[0].startswith("[!") else " ")
        elif token.type == "hardbreak":
            parts.append("\n")
        elif token.type == "s_open":
            opened.append(("s", len(parts)))
        elif token.type == "s_close":
            _close("s", parts, opened)
        elif token.type == "html_inline":
            _add_tag(token.content, parts, opened)
    return "".join(parts)


def _add_tag(tag: str, parts: list[str], opened: list[tuple[str, int]]) -> None:
    found = _TAG.match(tag)
    name = found["name"].lower() if found else ""
    if name == "br":
        parts.append("\n")
    elif name in _STRUCK | {"sup", "sub"}:
        if tag.startswith("</"):
            _close(name, parts, opened)
        else:
            opened.append((name, len(parts)))


def _close(name: str, parts: list[str], opened: list[tuple[str, int]]) -> None:
    if not opened or opened[-1][0] != name:
        return
    _, place = opened.pop()
    inner, before = "".join(parts[place:]), parts[place - 1] if place else ""
    if name in _STRUCK:
        parts[place:] = []
    else:
        parts[place:] = [raised(before, inner) if name == "sup" else lowered(before, inner)]
