"""HTML, by lexbor (selectolax): what a reader sees, block by block, and tables that hold data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from selectolax.lexbor import LexborHTMLParser, LexborNode

from qa_service.retrieval.documents import BlockList, Parsed, scripted
from qa_service.retrieval.formats.cells import MAX_COLUMNS, Cell, Grid, indent_of
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.grids import add_grid

_HIDDEN = frozenset({
    "script", "style", "template", "noscript", "svg", "select", "iframe", "head", "object",
    "canvas", "audio", "video", "map", "textarea", "input", "datalist", "annotation", "col",
    "colgroup", "img", "del", "s", "strike",
})  # fmt: skip
_APART = frozenset({"nav", "footer"})
"""What belongs to the site and not to the page."""
_APART_ROLES = frozenset({"navigation", "contentinfo", "search"})
_APART_CLASSES = frozenset({"navheader", "navfooter"})
"""DocBook's."""
_NAVIGATION = re.compile(
    r"(?:\b|_)(?:(?:doc|top|site|page|local)?nav(?:bar|igation|links?)?"
    r"|(?:main|sub|search|top)?menu|breadcrumbs?|(?:sphinx)?sidebar|pag(?:er|ination)|toc|related"
    r")\d*(?:\b|_)",
    re.IGNORECASE,
)
"""Classes and ids of what leads elsewhere, where no element says so."""
_LINKED_SHARE = 0.6
"""Of the letters of such an element; one with fewer in links is text."""
_MAX_LOOKED_CHARS = 2_000_000
"""In such elements of a page, of which each counts as 5,000 at least: they may nest."""
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hr", "html", "li", "main", "nav", "ol", "p", "pre", "section", "summary",
    "table", "ul", "option", "legend", "caption", "center", "menu", "hgroup", "tr", "td", "th",
    "thead", "tbody", "tfoot",
})  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_LISTS = frozenset({"ul", "ol", "dl", "menu"})
_LINED = re.compile(r"<(?=(p|li|h[1-6]|tr|pre|div|dd|dt|table|summary)\b)(\w+)", re.IGNORECASE)
_LINE = "data-line"
_TAG_OF_TABLE = re.compile(
    r"\s*(?:<!--.*?-->\s*)?<(?P<name>tr|td|th|tbody|thead|caption)\b", re.I | re.S
)
_SPACES = re.compile(r"\s+")
_TEMPLATE_TAG = re.compile(
    r"<(?P<end>/?)(?:pre|code|samp|kbd)\b[^<>]*>|\{%(?:(?!\{%).)*?%\}|\{\{(?:(?!\{\{).)*?\}\}|\{#(?:(?!\{#).)*?#\}|<%(?:(?!<%).)*?%>",
    re.DOTALL,
)
_EMPTY_IN_XHTML = re.compile(
    r"<(title|script|style|textarea|iframe|noscript)\b([^<>]*)/>", re.IGNORECASE
)
"""What HTML would take all that follows for the content of."""
_XHTML = re.compile(r"<\?xml\b|\bxmlns\s*=", re.IGNORECASE)
_XHTML_WITHIN_CHARS = 2_000
_SCRIPT_TEMPLATE = re.compile(
    r"<script\b[^>]*\btype=[\"']?text/(?:x-handlebars-template|x-template|template|html)\b[^>]*>",
    re.I,
)
_PERMALINKS = frozenset({"¶", "#", "§", "🔗"})
"""What a link to the heading that it stands in shows."""
_ICONS = frozenset("+−×✕✖▼▲▶◀►◄▾▴▸◂‹›«»→←↑↓↗⌄⌃☰⋮⋯•·|")  # noqa: RUF001, signs
"""What shows alone that something opens, closes or leads elsewhere, or parts two texts."""
_HIDING = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_MAX_NODES = 20_000_000
_MAX_SCRIPTS = 4
_MAX_TABLES = 4
"""Tables nested deeper than this only arrange the page."""
_BREAK = "\ue000"
"""Stands for `<br>` while white space is joined."""
_MAX_SPAN = 100


def parse_html(text: str, whole: str | None) -> Parsed:
    """Reads a page; of one that a template makes, what stands between the template's tags."""
    title, body, line = split_front_matter(text)
    out = BlockList()
    if "<script" in body:
        body = _SCRIPT_TEMPLATE.sub("<div>", body)  # what a script puts into the page as it is
    if _XHTML.search(body, 0, _XHTML_WITHIN_CHARS):
        body = _EMPTY_IN_XHTML.sub(r"<\1\2></\1>", body)
    lines = (_without_tags(body) if "{" in body or "<%" in body else body).split("\n")
    found = parse_into(out, "\n".join(lines), range(line, line + len(lines)))
    return Parsed(out.blocks, title or found)


def _without_tags(body: str) -> str:
    """A page without a template's tags; in code they are what the page shows."""
    depth = 0

    def kept(found: re.Match[str]) -> str:
        nonlocal depth
        tag = found[0]
        if found["end"] is not None:
            depth = max(0, depth - 1) if found["end"] else depth + 1
            return tag
        return tag if depth else "\n" * tag.count("\n")

    return _TEMPLATE_TAG.sub(kept, body)


def parse_into(out: BlockList, html: str, numbers: Sequence[int]) -> str:
    """Adds the blocks of a piece of HTML; returns the page's title, if it has one.

    Args:
        numbers: Of each line of the HTML, its number in the file.
    """
    if table := _TAG_OF_TABLE.match(html):
        html = f"<table>{html}" if table["name"].lower() != "td" else f"<table><tr>{html}"
    if "<" not in html:
        out.paragraph(html, numbers[0] if numbers else 0)
        return ""
    lines = html.split("\n")
    for place, line in enumerate(lines):
        if "<" in line:
            number = numbers[min(place, len(numbers) - 1)] if numbers else 0
            lines[place] = _LINED.sub(rf"<\2 {_LINE}={number}", line)
    tree = LexborHTMLParser("\n".join(lines))
    first = numbers[0] if numbers else 0
    if tree.body is not None:
        _Page(out, first).read(tree.body)
    title = tree.css_first("title")
    return " ".join(title.text().split()) if title is not None else ""


class _Page:
    """Walks a page's nodes; not by recursion, for they may be nested as deeply as they like."""

    def __init__(self, out: BlockList, line: int, num_tables: int = 0) -> None:
        self._out = out
        self._line = line
        self._words: list[str] = []
        self._preformatted = 0
        self._marks: list[int | None] = []
        """For each open list the number of its next item; None if its items have none."""
        self._scripts: list[int] = []
        self._term = ""
        self._num_tables = num_tables
        """How many tables are around this."""
        self._arrangements: list[int] = []
        """Open tables that hold no data."""
        self._left_out: LexborNode | None = None
        """The element that was left out last."""
        self._num_looked_chars = 0

    def read(self, root: LexborNode) -> None:
        node, count = self._open(root), 0
        if node is None:
            return
        while count < _MAX_NODES:
            count += 1
            below = self._open(node)
            while below is None:
                self._close(node)
                below = node.next
                if below is None:
                    node = node.parent
                    if node is None or node.mem_id == root.mem_id:
                        self._end_block()
                        return
            node = below

    def _open(self, node: LexborNode) -> LexborNode | None:
        """Takes a node's beginning; returns its first child, if what is in it counts."""
        tag = node.tag or "-"
        if tag == "-text":
            self._words.append(node.text_content or "")
            return None
        if tag in _HIDDEN or tag[0] in "-!":
            return None
        given = node.attributes
        if self._is_left_out(node, tag, given):
            self._left_out = node
            return None
        if tag == "a" and node.text().strip() in _PERMALINKS:
            return None
        if tag in _BLOCKS:
            self._end_block()
            self._line = _line_of(node, self._line)
            if tag == "table" and self._take_table(node):
                return None
            self._open_block(node, tag)
        elif tag == "br":
            self._words.append("\n" if self._preformatted else _BREAK)
        elif tag in {"sup", "sub"}:
            self._scripts = [*self._scripts[-_MAX_SCRIPTS:], len(self._words)]
        return node.child

    def _is_left_out(self, node: LexborNode, tag: str, given: Mapping[str, str | None]) -> bool:
        """Whether an element is hidden or belongs to the site: by what it is, or is named.

        One that is named as navigation is left out if most of it is links.
        """
        if tag in _APART or not given:
            return tag in _APART
        is_hidden = (
            "hidden" in given
            or given.get("aria-hidden") == "true"
            or given.get("role") in _APART_ROLES
            or ("style" in given and _HIDING.search(given["style"] or "") is not None)
        )
        may_lead = tag in _BLOCKS and tag != "body" and ("class" in given or "id" in given)
        if is_hidden or not may_lead:
            return is_hidden
        if given.get("class") in _APART_CLASSES:
            return True
        is_named = _NAVIGATION.search(f"{given.get('class')} {given.get('id')}")
        if not is_named or self._num_looked_chars > _MAX_LOOKED_CHARS:
            return False
        text = node.text()
        self._num_looked_chars += max(5_000, len(text))
        linked = sum(_num_letters(link.text()) for link in node.css("a"))
        return linked >= _LINKED_SHARE * _num_letters(text)

    def _open_block(self, node: LexborNode, tag: str) -> None:
        if tag in _LISTS:
            start = node.attributes.get("start") or "1"
            first = int(start) if start.isascii() and start.isdecimal() else 1
            self._marks.append(first if tag == "ol" else None)
            self._out.begin_list()
        elif tag == "li":
            mark = self._marks[-1] if self._marks else None
            self._out.begin_item("-" if mark is None else f"{mark}.")
            if mark is not None:
                self._marks[-1] = mark + 1
        elif tag == "dd":
            self._out.begin_definition(self._term)
            self._term = ""
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "table":
            self._arrangements.append(node.mem_id)

    def _close(self, node: LexborNode) -> None:
        tag = node.tag
        is_data = tag == "table" and self._arrangements[-1:] != [node.mem_id]
        if tag in {"sup", "sub"} and self._scripts:
            place = self._scripts.pop()
            inner = "".join(self._words[place:])
            before = self._words[place - 1] if 0 < place <= len(self._words) else ""
            is_note = tag == "sup" and node.css_first("a") is not None
            self._words[place:] = [] if is_note else [scripted(tag, before, inner)]
        elif node is self._left_out:
            return
        elif tag in _HEADINGS:
            words, self._words = _joined(self._words), []
            self._out.heading(_HEADINGS[tag], words, self._line)
        elif tag == "dt":
            words, self._words = _joined(self._words), []
            self._term = f"{self._term}, {words}" if self._term else words
        elif tag in _BLOCKS and not is_data:
            self._end_block()
            self._close_block(tag)

    def _close_block(self, tag: str) -> None:
        if tag in _LISTS and self._marks:
            if self._term:
                self._out.paragraph(self._term, self._line)
                self._term = ""
            self._marks.pop()
            self._out.end_list()
        elif tag in {"li", "dd"}:
            self._out.end_item()
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag == "table":
            self._arrangements.pop()

    def _take_table(self, node: LexborNode) -> bool:
        if self._num_tables + len(self._arrangements) >= _MAX_TABLES:
            return False
        table = read_table(node, self._cell_text, lambda row: _line_of(row, self._line))
        if table is None:
            return False
        caption = node.css_first("caption")
        if caption is not None:
            self._out.paragraph(_joined([caption.text()]), self._line)
        add_grid(self._out, table.rows)
        return True

    def _cell_text(self, cell: LexborNode) -> str:
        out = BlockList()
        _Page(out, self._line, self._num_tables + 1).read(cell)
        return " ".join(block.text for block in out.blocks)

    def _end_block(self) -> None:
        if not self._words:
            return
        words, self._words, self._scripts = self._words, [], []
        if self._preformatted:
            self._out.code("".join(words).replace(_BREAK, "\n"), self._line)
        elif (text := _joined(words)) not in _ICONS or self._num_tables:
            self._out.paragraph(text, self._line)


def _num_letters(text: str) -> int:
    """How long a text is without white space."""
    return len("".join(text.split()))


def _line_of(node: LexborNode, default: int) -> int:
    line = node.attributes.get(_LINE) or ""
    return int(line) if len(line) < 10 and line.isascii() and line.isdecimal() else default


def _joined(words: list[str]) -> str:
    return _SPACES.sub(" ", "".join(words)).replace(_BREAK, "\n").strip()


def read_table(
    table: LexborNode, text_of: Callable[[LexborNode], str], line_of: Callable[[LexborNode], int]
) -> Grid | None:
    """Reads a table; None if it only arranges the page: one column, or tables within it."""
    nodes = [row for row in table.css("tr") if row.css_first("td, th") is not None]
    is_arrangement = table.css_first("table table") is not None or not nodes
    if is_arrangement or (len(nodes) == 1 and table.css_first("pre") is not None):
        return None
    grid, is_head = Grid(), len(nodes) > 1
    for node in nodes:
        is_head = is_head and _is_head(node)
        grid.add_row(_cells(node, text_of), line_of(node), is_head=is_head)
    return grid if max(len(row.cells) for row in grid.rows) > 1 else None


def _cells(row: LexborNode, text_of: Callable[[LexborNode], str]) -> list[Cell]:
    cells, node = list[Cell](), row.child
    while node is not None and len(cells) < MAX_COLUMNS:
        if node.tag in {"td", "th"}:
            text = text_of(node)
            if not text and len(pictures := node.css("img[alt]")) == 1:
                text = (pictures[0].attributes.get("alt") or "").strip()
            columns, rows = _span(node, "colspan"), _span(node, "rowspan")
            is_strong = node.tag == "th" or _is_bold(node)
            indent = 0.0 if cells else indent_of(node.text().lstrip(" \t\r\n"))
            cells.append(Cell(text, columns, rows, is_strong, indent=indent))
        node = node.next
    return cells


def _span(node: LexborNode, name: str) -> int:
    value = node.attributes.get(name) or ""
    return max(1, min(int(value), _MAX_SPAN)) if value.isascii() and value.isdecimal() else 1


def _is_head(row: LexborNode) -> bool:
    """Whether a row names columns: in `thead`, or of headers alone but for empty cells."""
    parent = row.parent
    if parent is not None and parent.tag == "thead":
        return True
    node, num_headers = row.child, 0
    while node is not None:
        if node.tag == "td" and not _is_bold(node) and node.text().strip():
            return False
        num_headers += node.tag == "th" or (node.tag == "td" and _is_bold(node))
        node = node.next
    return num_headers > 1


def _is_bold(cell: LexborNode) -> bool:
    first = cell.css_first("strong, b")
    return first is not None and first.text().strip() == cell.text().strip()
