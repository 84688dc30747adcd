"""Labels at the left of a table's rows that belong to rows below: times, groups, and indents."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence

from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.table_heads import FEW, MAX_LABEL_CHARS, MIN_HEADS, VALUE

TIMES = re.compile(
    r"(?:\d\d?[:.]\d\d\s?[ap]\.?m\b\.?|\d\d?\s?[ap]\.?m\b\.?|\d\d?:\d\d"
    r"|\d\d?\.\d\d(?=\s?[-–—])|(?!19|20)[012]\d[0-5]\d)"  # noqa: RUF001, dashes
    r"(?:\s?(?:[-–—]|to|until)\s?\d.{0,12})?",  # noqa: RUF001, dashes
    re.IGNORECASE,
)
"""A time of day, or from one to another."""
_SAME_INDENT = 2.0
"""In points; labels that begin no further apart are at one level."""
_STEP_SHARE = 0.5
"""Of the first step; so are those that begin no further apart than that."""
_MAX_INDENTS = 5
"""Levels of labels in a column; where there are more, it is centred or aligned at the right."""
TOTAL = re.compile(
    r"(?:sub|grand )?-?total|summe|gesamt|insgesamt|.{1,40} totals?:?$", re.IGNORECASE
)
"""A label that belongs to all rows above it, however it is indented."""


def has_groups(rows: Sequence[Row], columns: Sequence[int], *, has_head: bool) -> bool:
    """Whether a label in the first column is that of rows without one below it, too.

    Times are those of words below, also where no head names the columns.
    """
    if len(columns) < 2 or not rows or not rows[0].at(columns[0]):
        return False
    cells = [row.at(columns[0]) for row in rows]
    labels = list(filter(None, cells))
    others = [row.at(columns[1]) for row in rows if not row.at(columns[0])]
    if not others or FEW * sum(map(bool, others)) < (FEW - 1) * len(others):
        return False
    if all(map(TIMES.fullmatch, labels)):
        return not any(map(VALUE.fullmatch, others))
    go_on = any(cell and not before for before, cell in itertools.pairwise(cells))
    num_values = sum(bool(VALUE.fullmatch(text)) and len(text) > 3 for text in labels)
    are_labels = FEW * num_values < len(labels)
    kinds = {row.at(columns[1]) for row in rows if row.at(columns[0])}
    are_few = len(set(labels)) == len(labels) and (
        kinds.issuperset(others) or len(labels) <= len(others)
    )
    return has_head and len(columns) >= MIN_HEADS and go_on and are_labels and are_few


def grouped(rows: Sequence[Row], column: int) -> list[Row]:
    """Rows of which each has its group's label; a total of all has none."""
    found, label = list[Row](), ""
    for row in rows:
        cells = list(row.cells)
        label = row.at(column) or label
        is_total = any(map(TOTAL.match, row.cells[column + 1 :]))
        cells[column : column + 1] = ["" if is_total else label]
        found.append(row._replace(cells=cells))
    return found


def labelled(rows: Sequence[Row], column: int) -> Sequence[Row]:
    """Rows whose label in a column, if it is indented, has before it those that it belongs to."""
    named = [row for row in rows if row.at(column)]
    places = sorted({row.indent for row in named})
    steps = [*itertools.pairwise(places)]
    same = max([_SAME_INDENT, *(_STEP_SHARE * (place - before) for before, place in steps[:1])])
    levels = [*places[:1], *(place for before, place in steps if place - before > same)]
    most = min(_MAX_INDENTS, max(2, (len(named) + 1) // 2))
    is_list = 1 < len(levels) <= most and named[0].indent < levels[1]
    if not is_list or any(VALUE.fullmatch(row.at(column)) for row in named):
        return rows
    found, path = list[Row](), dict[int, str]()
    for row in rows:
        cells, label = list(row.cells), row.at(column)
        if label and column not in row.from_above and not TOTAL.match(label):
            is_of_group = any(row.cells[:column])  # the indent is of the group's label
            level = bisect_right(levels, levels[0] if is_of_group else row.indent)
            path = {its: text for its, text in path.items() if its < level and text != label}
            cells[column] = ", ".join([*path.values(), label])
            path[level] = label[:MAX_LABEL_CHARS]
        found.append(row._replace(cells=cells))
    return found
