"""Markdown, by markdown-it-py: CommonMark with GitHub's tables and boxes, HTML within it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.deflist import deflist_plugin

from qa_service.retrieval.documents import BlockList, Kind, Parsed, folded, scripted
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.html import parse_into
from qa_service.retrieval.formats.markdown_source import BOX_MARK, RST_CODE, clean
from qa_service.retrieval.formats.rst import parse_rst_into

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
    lines, numbers, is_mdx = clean(body, first_line)
    labels = list[str]()
    if whole is not None:
        labels += [found["label"] for found in _DEFINITION.finditer(whole)]
        labels += [found["label"] for found in _REFERENCE.finditer(text)]  # those behind a text
    known = {" ".join(one.split()).lower().upper(): {"href": "", "title": ""} for one in labels}
    reader = _Reader(numbers)
    reader.read(_parser(is_mdx).parse("\n".join(lines), {"references": known}))
    return Parsed(reader.out.blocks, title)


@cache
def _parser(is_mdx: bool = False) -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable(["code"] if is_mdx else [])
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser.use(deflist_plugin)


class _Reader:
    def __init__(self, numbers: Sequence[int]) -> None:
        self.out = BlockList()
        self._numbers = numbers
        self._open: list[Token] = []
        """The blocks of text around this."""
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

    def _begin_definition(self, token: Token) -> None:
        self.out.begin_definition(self._term)
        self._term = ""

    def _inline(self, token: Token) -> None:
        text = _text(token.children or ())
        block = self._open[-1]
        if block.type == "heading_open":
            self.out.heading(int(block.tag[1]), text, self._line(token))
        elif block.type == "paragraph_open":
            self._paragraph(text, self._line(token))
        elif block.type == "th_open":
            self._head.append(text)
        elif block.type == "td_open":
            self._rows[-1][1].append(text)
        elif block.type == "dt_open":
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

    def _end_table(self, token: Token) -> None:
        self.out.table(self._head, [row for row in self._rows if row[1]])


_TEXTS, _LISTS = ("heading", "paragraph", "th", "td", "dt"), ("bullet_list", "ordered_list", "dl")
_HANDLERS: dict[str, Callable[[_Reader, Token], object]] = {
    **{f"{name}_open": lambda reader, token: reader._open.append(token) for name in _TEXTS},
    **{f"{name}_close": lambda reader, _: reader._open.pop() for name in _TEXTS},
    **{f"{name}_open": lambda reader, _: reader.out.begin_list() for name in _LISTS},
    **{f"{name}_close": lambda reader, _: reader.out.end_list() for name in _LISTS},
    "list_item_open": lambda reader, token: reader.out.begin_item(
        f"{token.info}." if token.info else "-"
    ),
    "list_item_close": lambda reader, _: reader.out.end_item(),
    "dd_open": _Reader._begin_definition,
    "dd_close": lambda reader, _: reader.out.end_item(),
    "inline": _Reader._inline,
    "fence": _Reader._code,
    "code_block": _Reader._code,
    "html_block": _Reader._html,
    "table_open": _Reader._begin_table,
    "tr_open": lambda reader, token: reader._rows.append((reader._line(token), [])),
    "table_close": _Reader._end_table,
}


def _shown(markup: str) -> str:
    """What Markdown within HTML shows, of which only the inline markup is left."""
    (token,) = _parser().parseInline(markup)
    return folded(_text(token.children or ())) or markup


def _text(children: Iterable[Token]) -> str:
    """What inline markup shows; nothing of what is struck out."""
    parts, opened = list[str](), list[tuple[str, int]]()
    for token in children:
        if token.type in {"text", "code_inline", "text_special"}:
            parts.append(token.content)
        elif token.type == "softbreak":
            parts.append("\n" if len(parts) == 1 and parts[0].startswith("[!") else " ")
        elif token.type == "hardbreak":
            parts.append("\n")
        elif token.type in {"s_open", "s_close"}:
            _add_tag("<s>" if token.type == "s_open" else "</s>", parts, opened)
        elif token.type == "html_inline":
            _add_tag(token.content, parts, opened)
    return "".join(parts)


def _add_tag(tag: str, parts: list[str], opened: list[tuple[str, int]]) -> None:
    """Takes a tag.

    Args:
        opened: Open `<sup>`, `<sub>` and what is struck out, and how many parts are before each.
    """
    found = _TAG.match(tag)
    name = found["name"].lower() if found else ""
    if name == "br":
        parts.append("\n")
    elif name in _STRUCK | {"sup", "sub"} and not tag.startswith("</"):
        opened.append((name, len(parts)))
    elif opened and opened[-1][0] == name:
        _, place = opened.pop()
        inner, before = "".join(parts[place:]), parts[place - 1] if place else ""
        parts[place:] = [] if name in _STRUCK else [scripted(name, before, inner)]
