"""PowerPoint's presentations, by python-pptx: of each slide its title, lists, tables and notes.

Shapes are read as a person reads them, by recursive cuts at the widest gap between them (the XY-cut
of Nagy and Seth: "Hierarchical representation of optically scanned documents", ICPR 1984): of cards
side by side each is read to its end, of bands one above another the upper first.
"""

from __future__ import annotations

import io
import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed
from qa_service.retrieval.formats.bounded import library, read_package, reading
from qa_service.retrieval.formats.cells import Cell, Grid
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.office_charts import add_chart
from qa_service.retrieval.formats.office_package import attribute, name_of, number
from qa_service.retrieval.formats.word_styles import written
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    from pptx.presentation import Presentation
    from pptx.slide import Slide
    from pptx.table import Table
    from pptx.text.text import TextFrame

_Shape = Any
"""One of python-pptx's shapes, which have no common class with what is asked of them here."""
_Element = Any
"""One of lxml's, as python-pptx has them."""
_SAME_HEIGHT = 360_000
"""A centimetre; shapes without a gap that begin within one are side by side."""
_MAY_OVERLAP = 72_000
"""Two millimetres: boxes are larger than what is written in them."""
_LISTS = frozenset({"BODY", "OBJECT", "VERTICAL_BODY"})
"""Placeholders that are written as the master's body is."""
_MARGINS = frozenset({"DATE", "FOOTER", "SLIDE_NUMBER"})
_TITLE = re.compile(r"[^\W\d_]{3}")
_TITLES = frozenset({"TITLE", "CENTER_TITLE", "VERTICAL_TITLE"})
"""python-pptx takes the first placeholder without a number for one, whatever its kind is."""
_MAX_TITLE_LINES = 3
_MAX_TITLE_CHARS = 100
_SIGNS = ("{*}buNone", "{*}buChar", "{*}buBlip", "{*}buAutoNum")
_NUMBERED = re.compile(
    r"(?P<form>arabic|alphaLc|alphaUc|romanLc|romanUc)(?P<around>Plain|Period|ParenR|ParenBoth)"
)
_FORMS = {
    "arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter",
    "romanLc": "lowerRoman", "romanUc": "upperRoman",
}  # fmt: skip
_AROUND = {"Plain": ("", "."), "Period": ("", "."), "ParenR": ("", ")"), "ParenBoth": ("(", ")")}
"""What stands around a list's number; without any, the text would begin with it."""
_USUAL_SIZE = 228_600
"""Eighteen points: what a box has that does not say."""
_MAX_SHAPES = 10_000
"""Of a slide; groups within groups count too."""


def read_pptx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the slides that are shown."""
    data = read_package(stream, max_bytes)
    package = library("pptx", "python-pptx", ".pptx")
    with reading("a presentation"):
        presentation: Presentation = package.Presentation(io.BytesIO(data))
    out = BlockList()
    for place, slide in enumerate(presentation.slides, 1):
        out.page, out.part = place, f"slide {place}"
        if slide.element.get("show") != "0":
            _read_slide(slide, out)
    title = presentation.core_properties.title or ""
    yield lay_out(Parsed(out.blocks, title), name)


def _read_slide(slide: Slide, out: BlockList) -> None:
    shapes = list(_shapes(slide))
    title = slide.shapes.title
    if title is None or _kind(title) not in _TITLES:
        title = next((shape for shape in shapes if _kind(shape) in _TITLES), _large_line(shapes))
    if title is not None:
        out.heading(1, " ".join(title.text_frame.text.split()))
    for shape in shapes:
        kind = _kind(shape)
        if kind in _MARGINS or (title is not None and shape.shape_id == title.shape_id):
            continue
        if shape.has_table:
            _read_table(shape.table, out)
        elif shape.has_chart:
            add_chart(out, Xml.fromstring(shape.chart.part.blob))
        elif shape.has_text_frame:
            _read_text(shape.text_frame, out, _styles(shape, slide))
    for part in slide.part.rels.values():
        if part.reltype.endswith("/diagramData") and not part.is_external:
            _read_diagram(part.target_part.blob, out)
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        _read_text(notes, out, [])


def _kind(shape: _Shape) -> str:
    return shape.placeholder_format.type.name if shape.is_placeholder else ""


def _large_line(shapes: Sequence[_Shape]) -> _Shape | None:
    """What is a slide's title without being marked as one: the largest line in its upper third.

    Only of a slide on which nothing is a placeholder of a kind, as of programs that draw boxes.
    """
    if any(_kind(shape) not in {"", "OBJECT", *_MARGINS} for shape in shapes):
        return None
    written = [shape for shape in shapes if shape.has_text_frame]
    sizes = [_size(shape) for shape in written]
    bottom = max(((shape.top or 0) + (shape.height or 0) for shape in written), default=0)
    lines = (
        (size, shape)
        for size, shape in zip(sizes, written, strict=True)
        if (shape.top or 0) < bottom / 3
        and len(shape.text_frame.text) <= _MAX_TITLE_CHARS
        and _TITLE.search(shape.text_frame.text)
        and sum(bool(one.text.strip()) for one in shape.text_frame.paragraphs) <= _MAX_TITLE_LINES
    )
    largest, title = max(lines, key=operator.itemgetter(0), default=(0, None))
    return title if any(size < largest for size in sizes) else None


def _size(shape: _Shape) -> int:
    """Of its first letters."""
    runs = (run for paragraph in shape.text_frame.paragraphs for run in paragraph.runs)
    first = next((run for run in runs if run.text.strip()), None)
    return (first and first.font.size) or _USUAL_SIZE


def _shapes(slide: Slide) -> Iterator[_Shape]:
    """A slide's shapes that say something, and those in its groups, in the order of reading."""
    waiting = _last_first(slide.shapes)
    for _ in range(_MAX_SHAPES):
        if not waiting:
            return
        shape = waiting.pop()
        if within := getattr(shape, "shapes", None):
            waiting += _last_first(within)
        else:
            yield shape


class _Box(NamedTuple):
    """A shape from one side to the other, and from its top to its bottom."""

    across: tuple[int, int]
    down: tuple[int, int]
    shape: _Shape


def _last_first(shapes: Iterable[_Shape]) -> list[_Shape]:
    boxes = []
    for shape in shapes:
        if hasattr(shape, "shapes") or shape.has_table or shape.has_chart or _says(shape):
            left, top = shape.left or 0, shape.top or 0
            right, bottom = left + (shape.width or 0), top + (shape.height or 0)
            boxes.append(_Box((left, right), (top, bottom), shape))
    found, waiting = [], [boxes]
    while waiting:
        if len(parts := _parts(waiting.pop())) > 1:
            waiting += parts
        else:
            found += sorted(parts[0], key=_by_height, reverse=True)
    return [box.shape for box in found]


def _says(shape: _Shape) -> bool:
    return shape.has_text_frame and bool(shape.text_frame.text.strip())


def _by_height(box: _Box) -> tuple[int, int]:
    return box.down[0] // _SAME_HEIGHT, box.across[0]


def _parts(boxes: list[_Box]) -> list[list[_Box]]:
    """Boxes cut into bands or columns, whichever are further apart; all in one if none are."""
    keys = (operator.attrgetter("down"), operator.attrgetter("across"))
    orders = [sorted(boxes, key=key) for key in keys]
    cuts = [_cuts(list(map(key, order))) for key, order in zip(keys, orders, strict=True)]
    widest = [max(one, default=(0, 0))[0] for one in cuts]
    side = 0 if widest[0] >= widest[1] else 1
    places = [at for gap, at in cuts[side] if 2 * gap >= widest[side]]
    return [orders[side][a:b] for a, b in itertools.pairwise([0, *places, len(boxes)])]


def _cuts(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The gaps between extents, which are in order, and the number of the one behind each."""
    found, end = [], -_MAY_OVERLAP
    for place, (start, stop) in enumerate(extents):
        if place and start + _MAY_OVERLAP > end:
            found.append((start + _MAY_OVERLAP - end, place))
        end = max(end, stop)
    return found


def _styles(shape: _Shape, slide: Slide) -> list[_Element]:
    """What says how a box's levels are written, the nearest first."""
    found, one = list[_Element](), shape
    while one is not None:
        found.append(one.element.find("{*}txBody/{*}lstStyle"))
        one = getattr(one, "_base_placeholder", None)
    if _kind(shape) in _LISTS:
        master = slide.slide_layout.slide_master.element
        found.append(master.find("{*}txStyles/{*}bodyStyle"))
    return [style for style in found if style is not None]


def _read_text(frame: TextFrame, out: BlockList, styles: Sequence[_Element]) -> None:
    paragraphs = [one for one in frame.paragraphs if one.text.strip()]
    counts = dict[int, int]()
    for paragraph in paragraphs:
        level, text = paragraph.level, paragraph.text.replace("\v", "\n")
        counts = {its: count for its, count in counts.items() if its <= level}
        own = paragraph._p.find("{*}pPr")
        levels = [own, *(style.find(f"{{*}}lvl{level + 1}pPr") for style in styles)]
        mark = _mark([one for one in levels if one is not None], counts, level)
        if mark and (mark != "-" or len(paragraphs) > 1):
            out.item(level + 1, mark, text)
        else:
            out.unnest()
            out.paragraph(text)
    out.unnest()


def _mark(properties: Iterable[_Element], counts: dict[int, int], level: int) -> str:
    """A paragraph's bullet or number, as the first of its properties has it that has one.

    Args:
        counts: The last number of each level of a list; counts the paragraph.
    """
    signs = (one for its in properties for one in its.iterchildren(*_SIGNS))
    sign = next(signs, None)
    kind = name_of(sign) if sign is not None else ""
    found = _NUMBERED.fullmatch(attribute(sign, "type"))
    if kind != "buAutoNum" or not found:
        counts.pop(level, None)
        return "-" if kind in {"buChar", "buBlip"} else ""
    counts[level] = counts.get(level, (number(sign, "startAt") or 1) - 1) + 1
    before, after = _AROUND[found["around"]]
    return f"{before}{written(counts[level], _FORMS[found['form']])}{after}"


def _read_table(table: Table, out: BlockList) -> None:
    grid = Grid()
    for place, row in enumerate(table.rows):
        cells = [cell for cell in row.cells if not cell.is_spanned]
        made = [
            Cell(cell.text, cell.span_width, cell.span_height) if cell.is_merge_origin
            else Cell(cell.text) for cell in cells
        ]  # fmt: skip
        grid.add_row(made, is_head=not place and table.first_row)
    add_grid(out, grid.rows)


def _read_diagram(data: bytes, out: BlockList) -> None:
    """Adds the texts of a diagram that Office calls SmartArt, as a list."""
    for point in Xml.fromstring(data).iterfind(".//{*}pt"):
        paragraphs = point.iterfind(".//{*}p")
        if text := " ".join("".join(one.itertext()) for one in paragraphs).strip():
            out.item(1, "-", text)
    out.unnest()
