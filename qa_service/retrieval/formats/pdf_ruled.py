"""Tables between ruled lines: their cells, of which some go over several columns or rows.

Rules that meet are one table. Where no rule stands between two places of its grid, they are one
cell. Rules that only frame a text, or that leave columns or labels out, are no table of theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import median_high, median_low

from qa_service.retrieval.formats.cells import Grid
from qa_service.retrieval.formats.pdf_boxes import Box, around
from qa_service.retrieval.formats.pdf_boxes import turned as turned_box
from qa_service.retrieval.formats.pdf_columns import (
    Columns,
    cell_of,
    fitted,
    level_centred,
    span_of,
)
from qa_service.retrieval.formats.pdf_levels import RuledCell, Text, add_row
from qa_service.retrieval.formats.pdf_lines import (
    Piece,
    has_bullet,
    is_mark,
    joined,
    lines_of,
    pieces_of,
)
from qa_service.retrieval.formats.pdf_page import Page, Word
from qa_service.retrieval.formats.pdf_rules import MIN_RULE
from qa_service.retrieval.formats.pdf_runs import MIN_ROWS
from qa_service.retrieval.formats.pdf_tables import Table
from qa_service.retrieval.formats.pdf_walls import Walls, column_of, middles_in, nearest

_MAX_GROUPS = 300
"""Groups of rules at one height of a page; more are a drawing's."""
_SAME = 3.0
"""Points; rules nearer to each other are one."""
_TOUCH = 4.5
"""Points; rules that come so near to each other meet."""
_AT_WORD = 2.0
"""Points; so near to a word's beginning its underline begins."""
_CLOSE = 0.04
"""Of a word's height; a rule of a table is no farther above its lower end."""
_MIN_ROW = 8.0
"""Points; what is lower and empty, below many rows, is the space between them."""
_HEAD_GAP = 1.5
"""Of a font's size; a line of names above the rules is no farther from them."""
_ALONE = 3.0
"""Of a word's height; so near above the rules there is no other line of several pieces."""
_LABEL_WIDTH = 0.5
"""Of a table's width; labels outside its rules are no farther away."""
_OFF_MIDDLE = 0.5
"""Of the first column's width; a name for several columns stands nearer to their middle."""
_VALUE_WORDS = 3
_MANY_FRAMES = 5
"""Cells over several rows, if most words are in such."""
_MANY_IN_A_CELL = 0.3
"""Of the lines in cells; if so many are wide apart in themselves, not all columns are ruled."""
_FRAMED = 0.75
"""Of a table's words; if more are in one cell over all columns, it is no table."""
_LONG_CHARS = 300
"""A list that is longer is no cell."""
_MAX_LINES = 400
"""Distinct rules of one direction in a table."""


def ruled_tables(page: Page, before: Sequence[Table] = ()) -> tuple[list[Table], list[list[Word]]]:
    """The tables whose cells are ruled, and of all words, and of those turned, what is in none.

    Args:
        before: Those of the page before, with the last of which a single row may go on.
    """
    tables, outside, held = list[Table](), page.words, set[int]()
    others = [
        [(word, as_most(word.box, quarters)) for word in part if not word.is_aslant]
        for part, quarters in page.turned
    ]
    for group in _touching(_without_underlines(page.rules, page.words)):
        columns = _distinct(rule.left for rule in group if not rule.width)
        rows = _distinct(rule.top for rule in group if not rule.height)
        columns = _distinct([*columns, *_open_sides(columns, rows, group)])
        if not (2 < len(columns) < _MAX_LINES and 1 < len(rows) < _MAX_LINES):
            continue
        rows = _distinct([*rows, *_open_ends(columns, rows, group)])
        box = Box(columns[0], rows[0], columns[-1], rows[-1])
        inside = [word for word in outside if holds(box, word.box)]
        if _goes_on_outside(box, inside, outside):
            continue
        walls = Walls(columns, rows, group)
        aside = [
            _naming(walls, inside, [(word, at) for word, at in part if holds(box, at)])
            for part in others
        ]
        head = _head_above(box, list(pairwise(columns)), outside)
        goes_on = any(_has_columns(table, columns) for table in before[-1:])
        if table := _ruled_table(box, walls, inside, aside, head, min_rows=1 if goes_on else 2):
            tables.append(table)
            held.update(map(id, inside), (id(word) for part in aside for word, _ in part))
            held.update(id(word) for piece in head for word in piece.words)
            outside = [word for word in outside if id(word) not in held]
    rest = ([word for word in part if id(word) not in held] for part, _ in page.turned)
    return tables, [outside, *rest]


def as_most(box: Box, quarters: int) -> Box:
    """Where a box is that stands on a turned page."""
    return Box(*turned_box(box.left, -box.bottom, box.right, -box.top, quarters))


def _naming(
    walls: Walls, words: list[Word], turned: list[tuple[Word, Box]]
) -> list[tuple[Word, Box]]:
    """Of turned words those that may name a column, or alone in a cell the rows at its right."""
    lowest, filled = dict[int, float](), set[tuple[int, int]]()
    for word in words if turned else ():
        column = column_of(walls.columns, word.box)
        lowest[column] = max(word.box.middle, lowest.get(column, -inf))
        filled.add(walls.place(word.box))
    found = list[tuple[Word, Box]]()
    for word, at in turned:
        place = walls.place(at)
        is_group = place not in filled and walls.span(*place)[1] > 1
        if is_group or at.bottom < lowest.get(column_of(walls.columns, at), -inf):
            found.append((word, at))
    return found


def holds(box: Box, other: Box) -> bool:
    """Whether a box has another's middle."""
    is_between = box.left < (other.left + other.right) / 2 < box.right
    return is_between and box.top < other.middle < box.bottom


def _without_underlines(rules: Sequence[Box], words: list[Word]) -> list[Box]:
    """Rules without those that begin with a word, and go through it or close below it."""
    boxes = sorted((word.box for word in words), key=lambda box: box.left)
    lefts, kept = [box.left for box in boxes], list[Box]()
    for rule in rules:
        first = bisect_left(lefts, rule.left - _AT_WORD)
        near = boxes[first : bisect_left(lefts, rule.left + _AT_WORD)] if rule.width else []
        if not any(box.top < rule.top < box.bottom - _CLOSE * box.height for box in near):
            kept.append(rule)
    return kept


def _goes_on_outside(box: Box, inside: list[Word], words: list[Word]) -> bool:
    """Whether most lines between rules go on beyond them: a label before them, values behind."""
    held = set(map(id, inside))
    lines = lines_of([word for word in words if box.top < word.box.middle < box.bottom])
    inner = labelled = followed = 0
    for line in lines:
        if not any(id(word) in held for word in line):
            continue
        before = pieces_of([word for word in line if word.box.right < box.left])
        behind = pieces_of([word for word in line if word.box.left > box.right])
        inner += 1
        labelled += bool(before) and box.left - before[-1].box.right < _LABEL_WIDTH * box.width
        followed += bool(behind) and len(behind[0].words) <= _VALUE_WORDS
    return 2 * max(labelled, followed) > inner


def _has_columns(table: Table, columns: list[float]) -> bool:
    edges = abs(table.box.left - columns[0]), abs(table.box.right - columns[-1])
    return max(edges) < _SAME and len(table.grid.rows[0].cells) == len(columns) - 1


def _open_ends(columns: list[float], rows: list[float], rules: list[Box]) -> Iterator[float]:
    """Where the rules of most columns end beyond the first and the last rule between rows.

    There is a row without a rule of its own, if the rule that parts it goes over all columns.
    """
    level = [rule for rule in rules if not rule.height]
    upright = [[rule for rule in rules if not rule.width and abs(rule.left - left) < _SAME]
               for left in columns]  # fmt: skip
    upright = list(filter(None, upright))
    for edge, end in (
        (rows[0], median_low(min(rule.top for rule in its) for its in upright)),
        (rows[-1], median_high(max(rule.bottom for rule in its) for its in upright)),
    ):
        parting = [rule for rule in level if abs(rule.top - edge) < _SAME]
        crossed = {n for rule in parting for n in middles_in(columns, rule.left, rule.right)}
        if not rows[0] < end < rows[-1] and len(crossed) == len(columns) - 1:
            yield end


def _open_sides(columns: list[float], rows: list[float], rules: list[Box]) -> Iterator[float]:
    """Where the rules between rows end beyond the first and the last rule between columns."""
    if not columns or len(rows) < MIN_ROWS + 2:
        return
    reach = [(inf, -inf)] * len(rows)
    for rule in rules:
        if rule.width:
            row = nearest(rows, rule.top)
            reach[row] = min(reach[row][0], rule.left), max(reach[row][1], rule.right)
    lefts, rights = zip(*reach[1:-1], strict=True)
    for edge, ends in ((columns[0], lefts), (columns[-1], rights)):
        if max(ends) - min(ends) < _SAME and abs(ends[0] - edge) > MIN_RULE:
            yield ends[0]


def _head_above(box: Box, columns: Columns, words: list[Word]) -> list[Piece]:
    """A line above the rules that names their columns, all but the first or last; [] if none."""
    near = [
        word
        for word in words
        if box.top - _ALONE * word.box.height < word.box.middle < box.top
        and box.left - _TOUCH < word.box.left < word.box.right < box.right + _TOUCH
    ]
    lines = lines_of(pieces_of(near))
    is_alone = all(len(line) == 1 for line in lines[:-1])
    is_near = bool(lines) and box.top - lines[-1][0].box.middle < _HEAD_GAP * lines[-1][0].size
    names = fitted(lines[-1], columns) if is_near and is_alone else []
    spans = [span_of(columns, name.box) for name in names]
    wanted = [(column, column) for column in range(len(columns))]
    return names if len(columns) > 2 and spans in (wanted, wanted[1:], wanted[:-1]) else []


def _touching(rules: Sequence[Box]) -> list[list[Box]]:
    """Groups of rules that meet; each rule without the width of its line."""
    flat = set[Box]()
    for rule in rules:
        left, top, right, bottom = (round(side, 1) for side in rule)
        is_level = right - left > bottom - top
        flat.add(Box(left, top, right, top) if is_level else Box(left, top, left, bottom))
    flat = _continued(flat)
    done, open_groups = list[list[Box]](), list[tuple[Box, list[Box]]]()
    for rule in sorted(flat, key=lambda rule: rule.top):
        near, box, apart = [rule], rule, list[tuple[Box, list[Box]]]()
        for other, members in open_groups:
            if _meet(other, rule):
                near += members
                box = around([box, other])
            elif other.bottom < rule.top - _TOUCH:
                done.append(members)
            else:
                apart.append((other, members))
        open_groups = [*apart, (box, near)]
        if len(open_groups) > _MAX_GROUPS:
            return []  # a drawing, whose lines would take too long
    return done + [members for _, members in open_groups]


def _continued(rules: set[Box]) -> set[Box]:
    """Rules of which those that stand go up to the end of the one above, if they end at no other.

    Programs draw a border in parts, of which the short ones are no rules.
    """
    levels = {rule.top for rule in rules if rule.width}
    found, ends = set[Box](), dict[float, float]()  # the lowest end so far at a place from the left
    for rule in sorted(rules, key=lambda rule: rule.top):
        end = ends.get(rule.left, -inf)
        ends[rule.left] = ends[rule.right] = max(end, rule.bottom)
        is_part = not rule.width and rule.top not in levels and rule.top - end < MIN_RULE
        found.add(rule._replace(top=min(end, rule.top)) if is_part else rule)
    return found


def _meet(box: Box, rule: Box) -> bool:
    return (
        box.left - _TOUCH <= rule.right
        and rule.left <= box.right + _TOUCH
        and box.top - _TOUCH <= rule.bottom
        and rule.top <= box.bottom + _TOUCH
    )


def _distinct(places: Iterable[float]) -> list[float]:
    """Places without those that another one is near."""
    found = list[float]()
    for place in sorted(places):
        if not found or place - found[-1] > _SAME:
            found.append(place)
    return found


def _ruled_table(
    box: Box,
    walls: Walls,
    words: list[Word],
    turned: list[list[tuple[Word, Box]]],
    head: list[Piece],
    *,
    min_rows: int,
) -> Table | None:
    """A table of the words between rules; None if they only frame one or two texts.

    Args:
        turned: Words in other directions, and where they are among the others; for each direction.
        head: Names of its columns that stand above it.
    """
    columns, rows = walls.columns, walls.rows
    places = dict[tuple[int, int], list[Word]]()
    for word in words:
        places.setdefault(walls.place(word.box), []).append(word)
    if len({column for _, column in places}) < 2 or len({row for row, _ in places}) < min_rows:
        return None
    blocks = [its for corner, its in places.items() if min(walls.span(*corner)) > 1]
    whole = [its for corner, its in places.items() if walls.span(*corner)[0] == len(columns) - 1]
    most = max(map(len, whole), default=0)
    if 3 * sum(map(len, blocks)) > len(words) or most > _FRAMED * len(words):
        return None  # a drawing, or a page's frame
    tall = [its for corner, its in places.items() if walls.span(*corner)[1] > 1]
    if len(tall) >= _MANY_FRAMES and 3 * sum(map(len, tall)) > 2 * len(words):
        return None  # frames side by side, each of its own height
    for part in turned:
        for place, word in _turned_texts(part, walls):
            places.setdefault(place, []).append(word)
    texts = {place: lines_of(pieces_of(its)) for place, its in places.items()}
    if are_no_cells(texts):
        return None
    grid = Grid()
    filled = {row + below for row, column in places for below in range(walls.span(row, column)[1])}
    thin = {n for n, (top, bottom) in enumerate(pairwise(rows)) if bottom - top < _MIN_ROW}
    gaps = thin - filled if 4 * len(thin - filled) > len(filled) else ()
    if head:
        names = {column_of(columns, name.box): [[name]] for name in head}
        grid.add_row([cell_of(names.get(n, ())) for n in range(len(columns) - 1)], is_head=True)
    for row in range(len(rows) - 1):
        if row not in gaps:
            _add_ruled_row(grid, row, walls, texts)
    level_centred(grid, [text for (_, column), text in texts.items() if not column])
    return Table(around([box, *(name.box for name in head)]), grid)


def _turned_texts(
    words: list[tuple[Word, Box]], walls: Walls
) -> Iterator[tuple[tuple[int, int], Word]]:
    """The texts of cells in another direction, each as a word, and the cells' places."""
    found = dict[tuple[int, int], list[tuple[Word, Box]]]()
    for word, box in words:
        found.setdefault(walls.place(box), []).append((word, box))
    for place, its in found.items():
        yield place, upright(its)


def upright(turned: list[tuple[Word, Box]]) -> Word:
    """Words in another direction as one that stands as most words do.

    Args:
        turned: Of one text, each with where it is among the others.
    """
    words = [word for word, _ in turned]
    text = joined(piece.text for line in lines_of(pieces_of(words)) for piece in line)
    is_bold = all(word.is_bold for word in words)
    box = around([box for _, box in turned])
    return Word(text, box, words[0].order, is_bold, tag=words[0].tag)


def are_no_cells(texts: dict[tuple[int, int], Text]) -> bool:
    """Whether texts are only arranged by rows and columns, or have columns in themselves.

    Args:
        texts: By row and column.
    """
    lines = [line for text in texts.values() for line in text]
    num_wide = sum(len(line) > 1 + is_mark(line[0].text) for line in lines)
    return num_wide > _MANY_IN_A_CELL * len(lines) or _arranges(texts)


def _arranges(cells: dict[tuple[int, int], Text]) -> bool:
    """Whether one or two rows are no data: labels at the left, and long lists at the right."""
    rows, columns = (sorted({place[n] for place in cells}) for n in (0, 1))
    if len(rows) > 2 or len(columns) > 2:
        return False
    lengths, total = dict.fromkeys(columns, 0), 0
    for (_, column), lines in cells.items():
        length = sum(len(piece.text) for line in lines for piece in line)
        lengths[column] += length if sum(has_bullet(line[0]) for line in lines) > 1 else 0
        total += length
    left, right = map(lengths.__getitem__, columns)
    return not left and right > max(_LONG_CHARS, total / 2)


def _add_ruled_row(grid: Grid, row: int, walls: Walls, texts: dict[tuple[int, int], Text]) -> None:
    cells = list[RuledCell]()
    columns = list(pairwise(walls.columns))
    for column in range(len(columns)):
        if walls.corner(row, column) == (row, column):
            width, height = walls.span(row, column)
            text = texts.get((row, column), [])
            inner = columns[column : column + width]
            if width > 1 and height == 1 and (parts := _inner_cells(text, inner)):
                cells += map(RuledCell, parts)
            else:
                cells.append(RuledCell(text, width, height))
    add_row(grid, cells)


def _inner_cells(text: Text, columns: Columns) -> list[Text]:
    """What a cell over several columns has for each of them, if a rule is missing; [] if nothing.

    Either all of its lines stand in columns, or its last one does, below a name for all.
    """
    names, width = fitted(text[0], columns) if text else [], columns[0][1] - columns[0][0]
    middle = (columns[0][0] + columns[-1][1]) / 2
    offs = [abs((name.box.left + name.box.right) / 2 - middle) for name in names]
    is_whole = len(names) > 1 or any(off > _OFF_MIDDLE * width for off in offs)
    for lines in (text, text[-1:]) if is_whole else (text[-1:],):
        pieces = [piece for line in lines for piece in fitted(line, columns)]
        placed = [(piece, *span_of(columns, piece.box)) for piece in pieces]
        is_apart = len({first for _, first, _ in placed}) > 1
        if is_apart and all(first == last for _, first, last in placed):
            found = [text[: -len(lines)] for _ in columns]
            for piece, column, _ in placed:
                found[column].append([piece])
            return found
    return []
