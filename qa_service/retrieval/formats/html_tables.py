"""Tables of HTML: which of them hold data, and their cells as a grid."""

from __future__ import annotations

from collections.abc import Callable

from selectolax.lexbor import LexborNode

from qa_service.retrieval.formats.grids import MAX_COLUMNS, Cell, Grid, indent_of

_MAX_SPAN = 100

CellText = Callable[[LexborNode], str]
LineOf = Callable[[LexborNode], int]


def read_table(table: LexborNode, text_of: CellText, line_of: LineOf) -> Grid | None:
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


def _cells(row: LexborNode, text_of: CellText) -> list[Cell]:
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
