"""PowerPoint's presentations, by python-pptx: of each slide its title, lists, tables and notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed
from qa_service.retrieval.formats.bounded import library, read_package, reading
from qa_service.retrieval.formats.cells import Cell, Grid
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    from pptx.presentation import Presentation
    from pptx.slide import Slide
    from pptx.table import Table
    from pptx.text.text import TextFrame

_SAME_HEIGHT = 360_000
"""A centimetre; shapes that begin within one are side by side."""
_LISTS = frozenset({"BODY", "OBJECT", "VERTICAL_BODY"})
"""Placeholders whose paragraphs are a list's: those of a slide's content, not a subtitle's."""
_MARGINS = frozenset({"DATE", "FOOTER", "SLIDE_NUMBER"})
_MAX_SHAPES = 10_000
"""Of a slide; groups within groups count too."""


def read_pptx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the slides that are shown."""
    data = read_package(stream, max_bytes)
    package = library("pptx", "python-pptx", ".pptx")
    with reading("a presentation"):
        presentation: Presentation = package.Presentation(io.BytesIO(data))
    out = BlockList()
    for number, slide in enumerate(presentation.slides, 1):
        out.page, out.part = number, f"slide {number}"
        if slide.element.get("show") != "0":
            _read_slide(slide, out)
    title = presentation.core_properties.title or ""
    yield lay_out(Parsed(out.blocks, title), name)


def _read_slide(slide: Slide, out: BlockList) -> None:
    title = slide.shapes.title
    if title is not None:
        out.heading(1, title.text_frame.text.replace("\v", " "))
    for shape in _shapes(slide):
        kind = shape.placeholder_format.type.name if shape.is_placeholder else ""
        if kind in _MARGINS or (title is not None and shape.shape_id == title.shape_id):
            continue
        if shape.has_table:
            _read_table(shape.table, out)
        elif shape.has_chart:
            if shape.chart.has_title and shape.chart.chart_title.has_text_frame:
                out.paragraph(shape.chart.chart_title.text_frame.text)
        elif shape.has_text_frame:
            _read_text(shape.text_frame, out, is_list=kind in _LISTS)
    for part in slide.part.rels.values():
        if part.reltype.endswith("/diagramData") and not part.is_external:
            _read_diagram(part.target_part.blob, out)
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        _read_text(notes, out, is_list=False)


def _shapes(slide: Slide) -> Iterator[Any]:
    """A slide's shapes and those in its groups, from top to bottom and from left to right."""
    waiting = _last_first(slide.shapes)
    for _ in range(_MAX_SHAPES):
        if not waiting:
            return
        shape = waiting.pop()
        if within := getattr(shape, "shapes", None):
            waiting += _last_first(within)
        else:
            yield shape


def _last_first(shapes: Iterable[Any]) -> list[Any]:
    placed = ((shape.top or 0, shape.left or 0, shape) for shape in shapes)
    ordered = sorted(placed, key=lambda one: (one[0] // _SAME_HEIGHT, one[1]))
    return [shape for *_, shape in reversed(ordered)]


def _read_text(frame: TextFrame, out: BlockList, *, is_list: bool) -> None:
    paragraphs = [one for one in frame.paragraphs if one.text.strip()]
    is_list = is_list and len(paragraphs) > 1
    for paragraph in paragraphs:
        text = paragraph.text.replace("\v", "\n")
        if is_list:
            out.item(paragraph.level + 1, "-", text)
        else:
            out.paragraph(text)
    out.unnest()


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
