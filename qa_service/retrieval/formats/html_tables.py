"""Tables of HTML: which of them hold data, their columns' names, and cells over several rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from selectolax.lexbor import LexborNode

_MAX_SPAN = 100
_MAX_COLUMNS = 1000


class Table(NamedTuple):
    """A table that holds data.

    Attributes:
        head: The columns' names; none if the table names none.
        rows: Each row's node, and its cells' texts.
    """

    head: list[str]
    rows: list[tuple[LexborNode, list[str]]]


class _Cell(NamedTuple):
    text: str
    is_header: bool
    rows_left: int = 0


CellText = Callable[[LexborNode], str]


def read_table(table: LexborNode, text_of: CellText) -> Table | None:
    """Reads a table; None if it only arranges the page: one column, or tables within it."""
    nodes = [row for row in table.css("tr") if row.css_first("td, th") is not None]
    is_arrangement = table.css_first("table table") is not None or not nodes
    if is_arrangement or (len(nodes) == 1 and table.css_first("pre") is not None):
        return None
    rows, above = list[list[_Cell]](), list[_Cell]()
    for node in nodes:
        above = _filled(node, above, text_of)
        rows.append(above)
    if max(map(len, rows)) < 2:
        return None
    num_head = 1 if _is_head(rows[0], nodes[0]) and len(rows) > 1 else 0
    head = [cell.text for cell in rows[0]] if num_head else []
    kept = zip(nodes[num_head:], rows[num_head:], strict=True)
    return Table(head, [(node, _texts(row, bool(head))) for node, row in kept])


def _filled(row: LexborNode, above: list[_Cell], text_of: CellText) -> list[_Cell]:
    """A row's cells, with those of the row above that reach into it."""
    cells: list[_Cell] = []

    def take_from_above() -> None:
        while len(cells) < len(above) and above[len(cells)].rows_left:
            cell = above[len(cells)]
            cells.append(cell._replace(rows_left=cell.rows_left - 1))

    node = row.child
    while node is not None and len(cells) < _MAX_COLUMNS:
        if node.tag in {"td", "th"}:
            take_from_above()
            cell = _Cell(text_of(node), node.tag == "th", _span(node, "rowspan") - 1)
            cells.append(cell)
            cells += [cell._replace(text="")] * (_span(node, "colspan") - 1)
        node = node.next
    take_from_above()
    return cells


def _span(node: LexborNode, name: str) -> int:
    value = node.attributes.get(name) or ""
    return max(1, min(int(value), _MAX_SPAN)) if value.isascii() and value.isdecimal() else 1


def _is_head(cells: list[_Cell], row: LexborNode) -> bool:
    parent = row.parent
    if parent is not None and parent.tag == "thead":
        return True
    node, num_bold = row.child, 0
    while node is not None:
        if node.tag == "td":
            first = node.css_first("strong, b")
            num_bold += first is not None and first.text().strip() == node.text().strip()
        node = node.next
    is_named = len(cells) > 1 and all(cell.is_header for cell in cells)
    return is_named or num_bold == len(cells)


def _texts(row: list[_Cell], has_head: bool) -> list[str]:
    """The texts; of a row that names itself, its name with a colon."""
    texts = [cell.text for cell in row]
    names_itself = not has_head and len(row) > 1 and row[0].is_header and not row[1].is_header
    if names_itself and texts[0]:
        return [f"{texts[0].rstrip(':')}: {texts[1]}", *texts[2:]]
    return texts
