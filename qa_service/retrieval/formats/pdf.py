"""The text of a PDF, page by page: what PDFium finds on it, in the order in which it is read.

page ─▶ words and rules ─▶ ruled tables ─▶ columns ─▶ tables without rules, paragraphs ─▶ blocks
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, takewhile
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

from qa_service.retrieval.documents import (
    Block,
    BlockList,
    Document,
    Fault,
    Parsed,
    UnreadableError,
)
from qa_service.retrieval.formats.bounded import library, read_bytes
from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.pdf_lines import (
    Piece,
    joined,
    lines_of,
    pieces_of,
    with_rules,
)
from qa_service.retrieval.formats.pdf_page import HYPHEN, Page, PageReader, Word
from qa_service.retrieval.formats.pdf_reading_order import in_columns
from qa_service.retrieval.formats.pdf_runs import MIN_ROWS
from qa_service.retrieval.formats.pdf_tables import Table, split_tables
from qa_service.retrieval.formats.pdf_tagged import tables_on
from qa_service.retrieval.formats.pdf_text import (
    Counting,
    Text,
    body_size,
    goes_on,
    is_heading,
    paragraphs,
    text_of,
    without_margins,
)
from qa_service.retrieval.formats.table_heads import MIN_HEADS, num_head, reach_of
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    import pypdfium2

_HYPHENATED = re.compile(rf"\b(\w+)(?:{HYPHEN}|-)\n(?=(\w+))")
_WORD = re.compile(r"\w+(?:-\w+)*")
_CONTENTS = re.compile(
    r"(?:table of )?contents?:?|inhalt(?:sverzeichnis)?|(?:tables? des )?matières|sommaire|índice",
    re.IGNORECASE,
)
_PAGES = re.compile(r"(?:^|(?<![.…])[.…]{4,} ?)(?:[Pp]age )?(\d{1,4})(?: ?[-–] ?\d{1,4})?$")  # noqa: RUF001, dash
_UNNUMBERED_PAGES = 10
"""The numbers of pages may be so much higher than their count: a part of a document."""
_ENTRY_LINES = 3
"""Of an entry in a table of contents, at most."""
_SECTION = re.compile(r"^\d{1,2}(?:\.\d{1,2})+\.?(?=[^\W\d_]{2})")
"""The number of a section that stands close to its heading."""
_MAX_LEVEL = 6
_ENDS = re.compile(r"[.!?:;]\W*$")
_HEAD_LINES = 3
"""Lines of columns' names at a page's end, at most."""
_BELOW = 3.0  # points
_INDENT = 4.0  # points
_SAME_WIDTH = 4.0  # points
_TITLES = 3
"""Lines between two tables that may have the same names, at most."""

Part = Text | Table
"""What a document consists of."""


def read_pdf(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document | Fault]:
    """Reads a PDF that has a text; of scanned pages there is none."""
    package = library("pypdfium2", "pypdfium2", "PDF")
    try:
        pdf: pypdfium2.PdfDocument = package.PdfDocument(read_bytes(stream, max_bytes))
    except package.PdfiumError as error:
        raise UnreadableError(f"not a PDF that can be opened: {error}") from None
    reader, pages, scanned, length = PageReader(), list[Page](), list[int](), 0
    pdf.init_forms()
    for number in range(len(pdf)):
        page = _flat(package.raw, pdf, number)
        read = reader.read(page)
        parts = [read.words, *(part.words for part in read.turned)]
        length += sum(len(word.text) + 1 for part in parts for word in part)
        if length > max_bytes:
            raise UnreadableError(f"more than {max_bytes} characters of text (--max_file_bytes)")
        if not (read.words or read.turned) and any(
            page.get_objects(filter=[package.raw.FPDF_PAGEOBJ_IMAGE])
        ):
            scanned.append(number + 1)
        pages.append(read)
        page.close()
    if not length:
        raise UnreadableError("no text in it: scanned pages need OCR first")
    for number in scanned:
        yield Fault(f"{name}, page {number}", "no text on it: scanned pages need OCR first")
    title = pdf.get_metadata_value("Title").encode("utf-8", "replace").decode()  # no surrogates
    yield lay_out(Parsed(_blocks(pages), title.strip()), name)


def _flat(raw: ModuleType, pdf: pypdfium2.PdfDocument, number: int) -> pypdfium2.PdfPage:
    """A page with what is filled into its form, and its notes, as a part of it."""
    page = pdf[number]
    if pdf.formenv and any(
        _is_drawn(raw, page, n) for n in range(raw.FPDFPage_GetAnnotCount(page))
    ):
        page.flatten()
        page.close()
        page = pdf[number]
    return page


def _is_drawn(raw: ModuleType, page: pypdfium2.PdfPage, number: int) -> bool:
    """Whether a field or note of a page has a look: links have none."""
    annotation = raw.FPDFPage_GetAnnot(page, number)
    try:
        return bool(raw.FPDFAnnot_HasKey(annotation, b"AP"))
    finally:
        raw.FPDFPage_CloseAnnot(annotation)


def _blocks(pages: list[Page]) -> list[Block]:
    split, tables = list[list[list[Piece]]](), list[list[Table]]()
    turned = list[list[list[Word]]]()
    for page in pages:
        found, (words, *others) = tables_on(page, *tables[-1:])
        lines = lines_of(pieces_of(words))
        rows = [row for table in found for row in table.grid.rows]
        ends = [_PAGES.search(cell) for row in rows for cell in row.cells[-1:]]
        if 2 * sum(map(bool, ends)) > len(ends) and _is_contents(lines):
            found, lines = [], lines_of(pieces_of(page.words))
        tables.append(found)
        split.append(with_rules(lines, page.rules))
        turned.append(others)
    kept, heads = without_margins(split)
    kept = _without_contents(kept)
    for lines, after in pairwise(kept):
        _move_head(lines, after)
    parts, counter = list[Part](), Counting()
    for number, (lines, ruled, others) in enumerate(zip(kept, tables, turned, strict=True), 1):
        _add_page(parts, [piece for line in lines for piece in line], ruled, number, counter)
        for words in others:
            parts += paragraphs(lines_of(pieces_of(words)), number, counter)
    return _written(parts, heads)


def _move_head(lines: list[list[Piece]], after: list[list[Piece]]) -> None:
    """Moves columns' names at a page's end to the next page, where the rows are."""
    start = next(
        (n for n in range(len(lines))[: -_HEAD_LINES - 1 : -1] if _is_head(lines[n:], after)), 0
    )
    if not start or len(lines[start - 1]) > 1:
        return
    moved = lines[start:]
    del lines[start:]
    rise = moved[-1][0].box.bottom - after[0][0].box.top
    for piece in chain.from_iterable(moved):
        box = piece.box
        piece.box = box._replace(top=box.top - rise, bottom=box.bottom - rise)
    after[:0] = moved


def _is_head(lines: list[list[Piece]], below: list[list[Piece]]) -> bool:
    """Whether lines are bold, and pieces of those below, which are not, begin where theirs do."""
    names, rows = lines[0], below[:MIN_ROWS]
    if len(names) < MIN_HEADS or len(rows) < MIN_ROWS or min(map(len, rows)) < 2:
        return False
    if not all(piece.is_bold for line in lines for piece in line):
        return False
    pieces = chain.from_iterable([*lines[1:], *rows])
    lefts = [name.box.left for name in names]
    are_below = all(any(abs(one.box.left - left) < _BELOW for left in lefts) for one in pieces)
    return are_below and not any(line[0].is_bold for line in rows)


def _without_contents(pages: list[list[list[Piece]]]) -> list[list[list[Piece]]]:
    """Pages of lines without tables of contents: titles with the numbers of their pages.

    They stand below a heading that says so, or dots lead to the numbers. The lines of a form begin
    with the numbers that they end with.
    """
    kept, last = list[list[list[Piece]]](), 0
    for lines in pages:
        entries = [n for n, line in enumerate(lines) if _page_number(line)]
        numbers = [_page_number(lines[n]) for n in entries] or [0]
        falls = sum(after < before for before, after in pairwise(numbers))
        is_known = 0 < last <= numbers[0] or _is_contents(lines[: entries[0]] if entries else ())
        led = [lines[n][-1].is_led or ".." in lines[n][-1].text for n in entries]
        most = len(pages) + (_UNNUMBERED_PAGES if is_known else 0)
        texts = [text_of(lines[n]).split() for n in entries]
        of_form = sum(text[0] == str(number) for text, number in zip(texts, numbers, strict=False))
        is_listed = (is_known or 2 * sum(led) > len(led)) and 2 * of_form <= len(entries)
        is_listed = is_listed and 10 * falls <= len(entries) > 2
        last = numbers[-1] if is_listed and numbers[-1] <= most else 0
        near = (one for one in pairwise(entries) if last and one[1] - one[0] <= _ENTRY_LINES)
        dropped = {n for one, after in near for n in range(one, after + 1)}
        kept.append([line for n, line in enumerate(lines) if n not in dropped])
    return kept


def _is_contents(lines: Iterable[list[Piece]]) -> bool:
    return any(_CONTENTS.fullmatch(text_of(line)) for line in lines)


def _page_number(line: list[Piece]) -> int:
    """The number at a line's end, apart from its words or behind dots; 0 if there is none."""
    found = _PAGES.search(line[-1].text)
    return int(found[1]) if found and (found.start() or len(line) > 1) else 0


def _add_page(
    parts: list[Part], pieces: list[Piece], tables: list[Table], page: int, counter: Counting
) -> None:
    holders = [Piece([], table.box, 0.0) for table in tables]
    placed = {id(one): table for one, table in zip(holders, tables, strict=True)}
    for region in in_columns([*pieces, *holders]):
        column, last = list[Part](), parts[-1] if parts else None
        before = last.columns if isinstance(last, Table) and last.page == page - 1 else ()
        run = list[list[Piece]]()
        right = max((piece.box.right for piece in region), default=0.0)
        for line in lines_of(region):
            held = [placed[id(piece)] for piece in line if id(piece) in placed]
            if held:
                _add_parts(column, split_tables(run, before), page, counter, right)
                run, before = [], ()
                column += [table._replace(page=page) for table in held]
            if rest := [piece for piece in line if id(piece) not in placed]:
                run.append(rest)
        _add_parts(column, split_tables(run, before), page, counter, right)
        _append(parts, column)


def _add_parts(
    column: list[Part],
    parts: list[list[list[Piece]] | Table],
    page: int,
    counter: Counting,
    right: float,
) -> None:
    for part in parts:
        if isinstance(part, Table):
            column.append(part._replace(page=page))
        else:
            column += paragraphs(part, page, counter, right)


def _append(parts: list[Part], column: list[Part]) -> None:
    """Adds a column; a paragraph that goes on in it is put together, before the notes below it."""
    if column and isinstance(first := column[0], Text):
        for part in reversed(parts):
            if not isinstance(part, Text):
                break
            if goes_on(part, first):
                part.lines += first.lines
                part.is_full = first.is_full
                column = column[1:]
                break
            if part.size > 0.95 * first.size:
                break
    parts += column


def _written(parts: list[Part], heads: list[str]) -> list[Block]:
    texts = [part for part in parts if isinstance(part, Text)]
    lines = "\n".join(line for text in texts for line in text.lines)
    known = Counter(map(str.lower, _WORD.findall(lines)))
    out, lefts, tables = BlockList(), list[float](), add_grid(BlockList(), ())
    for head in heads:
        out.paragraph(head)
    levels = _levels(parts, body_size(texts))
    for one, after in pairwise(parts):
        if isinstance(one, Table) and isinstance(after, Table) and _are_one(one, after):
            _join_row(one.grid.rows, after.grid.rows)
    last, between = None, list[Text]()
    for before, part in zip([None, *parts], parts, strict=False):
        out.page, out.part = part.page, f"page {part.page}"
        # Of open lists' items: where they begin. One that is indented by more is in another list.
        level = levels.get(id(part))
        if isinstance(part, Text) and part.mark and not level:
            lefts = [left for left in lefts if left < part.left - _INDENT] + [part.left]
        else:
            lefts = []
        out.nest(len(lefts))
        if isinstance(part, Table):
            is_same = isinstance(before, Table) and _are_one(before, part)
            is_same = is_same or (last is not None and _has_its_names(last, part, between))
            tables = add_grid(out, part.grid.rows, above=tables if is_same else ())
            last, between = (last if is_same and last else part)._replace(page=part.page), []
            continue
        between.append(part)
        if level:
            words = _SECTION.sub(r"\g<0> ", _joined(part.lines, known))
            out.heading(level, f"{part.mark} {words}".lstrip())
        elif part.mark:
            out.item(len(lefts), part.mark, _joined(part.lines, known))
        else:
            out.paragraph(_joined(part.lines, known))
    return out.blocks


def _are_one(before: Table, table: Table) -> bool:
    """Whether a table is the next page's part of the one before."""
    is_alike = abs(before.box.width - table.box.width) < _SAME_WIDTH
    if before.is_tagged and table.is_tagged:
        is_alike = len(before.grid.rows[0].cells) == len(table.grid.rows[0].cells)
    return is_alike and table.page == before.page + 1


def _has_its_names(before: Table, table: Table, between: list[Text]) -> bool:
    """Whether a table without a head has the columns of the one before, below a few titles."""
    is_near = before.page <= table.page <= before.page + 1 and len(between) <= _TITLES
    is_near = is_near and all(len(text.lines) == 1 for text in between)
    sides = zip(before.box[::2], table.box[::2], strict=True)
    if not is_near or any(abs(one - other) > _SAME_WIDTH for one, other in sides):
        return False
    rows, below = [row for row in before.grid.rows if row.columns()], table.grid.rows
    named = reach_of(rows[: num_head(rows, has_head=False)])
    is_like = len(rows[0].cells) == len(below[0].cells) and reach_of(below) - {0} <= named
    return is_like and not num_head(
        [row for row in below if len(row.columns()) > 1], has_head=False
    )


def _join_row(rows: list[Row], below: list[Row]) -> None:
    """Puts what goes on with the last row, below the head that a page has again, in that row."""
    pairs = zip(rows, below, strict=False)
    num_head = sum(1 for _ in takewhile(lambda both: both[0].cells == both[1].cells, pairs))
    if num_head < min(len(rows), len(below)) and _goes_on(rows, below[num_head].cells):
        rest = below.pop(num_head).cells
        cells = [joined(filter(None, both)) for both in zip(rows[-1].cells, rest, strict=True)]
        rows[-1] = rows[-1]._replace(cells=cells)


def _goes_on(rows: list[Row], below: list[str]) -> bool:
    """Whether cells only go on with those of the last row: with a sentence, or without a label."""
    last, filled = rows[-1].cells, [column for column, cell in enumerate(below) if cell]
    if len(last) != len(below) or not filled or not all(last[column] for column in filled):
        return False
    cut = [
        column for column in filled if below[column][0].islower() and not _ENDS.search(last[column])
    ]
    others = [column for column in cut if not any(row.at(column)[:1].islower() for row in rows[1:])]
    return bool(others) or (not below[0] and 2 * len(filled) <= len(last) > 2)


def _joined(lines: list[str], known: Counter[str]) -> str:
    """A paragraph's lines as one.

    Args:
        known: The document's words, which say how one that a line's end cuts is written.
    """

    def whole(found: re.Match[str]) -> str:
        """The beginning of a word that is cut: with its hyphen where it has one elsewhere."""
        before, after = found[1], found[2]
        whole, hyphened = f"{before}{after}".lower(), f"{before}-{after}".lower()
        is_hyphened = known[hyphened] > known[whole] or not after[0].islower()
        return f"{before}-" if is_hyphened else before

    return joined([_HYPHENATED.sub(whole, "\n".join(lines))]).replace(HYPHEN, "-")


def _levels(parts: list[Part], body: float) -> dict[int, int]:
    """The level of each heading, by its size; what has no text below it is none.

    Nor are items of which the next one is in bold, too.
    """
    marked = [one for one in parts[:-1] if isinstance(one, Text) and is_heading(one, body)]
    items = {id(one) for one in marked if one.mark and not (one.tag and one.tag.is_heading)}
    near = ({id(one), id(after)} for one, after in pairwise(parts))
    listed = set[int]().union(*(pair for pair in near if pair <= items))
    marked = [one for one in marked if id(one) not in listed]
    looks = sorted({(round(part.size), part.is_bold) for part in marked}, reverse=True)
    rank = {look: min(_MAX_LEVEL, n) for n, look in enumerate(looks, 1)}
    levels = {id(part): rank[round(part.size), part.is_bold] for part in marked}
    for part, after in pairwise(parts):
        if id(after) in levels and levels.get(id(part), 0) >= levels[id(after)]:
            del levels[id(part)]
    return levels
