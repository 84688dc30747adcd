"""PDF files, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def pdf_file(*pages: str, title: str = "") -> bytes:
    painted = [f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET".encode() for words in pages]
    return pdf_of([stream(data) for data in painted], title)


def pdf_of(
    streams: list[bytes],
    title: str = "",
    *,
    page_entries: str | Sequence[str] = "",
    form: str = "",
    more: tuple[bytes, ...] = (),
) -> bytes:
    """A page for each content stream.

    Args:
        page_entries: What else each page's dictionary has; of one text all pages have the same.
        form: The catalog's form.
        more: Objects after those of the pages, from `number_after(streams)`.
    """
    kids = " ".join(f"{7 + 2 * number} 0 R" for number in range(len(streams)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {form} >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        f"<< /Title ({title}) >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold >>",
        b"<< /Font << /F1 3 0 R /F2 5 0 R /F3 %d 0 R >> >>" % number_after(streams),
    ]
    for number, stream in enumerate(streams):
        entries = page_entries if isinstance(page_entries, str) else page_entries[number]
        page = f"<< /Type /Page /Parent 2 0 R /Resources 6 0 R {entries}"
        objects += [f"{page} /Contents {8 + 2 * number} 0 R >>".encode(), stream]
    objects += more
    data = b"%PDF-1.4\n"
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return data + head + table + trailer % (len(objects) + 1, len(data))


def number_after(streams: list[bytes]) -> int:
    """The number of the first object after those of a page for each stream."""
    return 7 + 2 * len(streams)


def words(x: float, y: float, text: str, *, size: float = 10, font: str = "F1") -> str:
    """Paints words; y is from the lower edge, as in the file."""
    escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"BT /{font} {size} Tf {x} {y} Td ({escaped}) Tj ET\n"


def lines(x: float, y: float, *texts: str, size: float = 10, font: str = "F1") -> str:
    painted = (
        words(x, y - 1.2 * size * n, text, size=size, font=font) for n, text in enumerate(texts)
    )
    return "".join(painted)


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"{x1} {y1} m {x2} {y2} l S\n"


def content(*parts: str) -> bytes:
    return stream("".join(parts).encode("cp1252"))


def packed_stream(data: bytes, filters: int) -> bytes:
    """A stream whose data is packed by zlib already, this many times."""
    names = "/FlateDecode " * filters
    return stream(data, f"/Filter [{names}]")


def stream(data: bytes, entries: str = "") -> bytes:
    head = f"<< /Length {len(data)} {entries} >>\nstream\n".encode()
    return head + data + b"\nendstream"


class Tagged(NamedTuple):
    """A part of a page as its file names it: what is painted, or further parts.

    Attributes:
        kind: Of the structure element; "" for what is painted without a mark.
        attributes: Of a table, as in `/ColSpan 2`.
    """

    kind: str
    parts: Sequence[Tagged | str]
    attributes: str = ""


def tagged_pdf(*pages: Sequence[Tagged]) -> bytes:
    """A tagged PDF (ISO 32000-1, 14.7) whose parts are painted in the order of their tags."""
    first = 7 + 2 * len(pages)
    elements, streams, parents = list[str](), list[bytes](), list[str]()
    tops = list[int]()

    def add(part: Tagged, parent: int, page: int, painted: list[str], marks: list[int]) -> int:
        number = first + 1 + len(elements)
        elements.append("")
        kids = list[str]()
        for one in part.parts:
            if isinstance(one, str):
                kids.append(str(len(marks)))
                painted.append(f"/{part.kind} << /MCID {len(marks)} >> BDC {one} EMC\n")
                marks.append(number)
            elif one.kind:
                kids.append(f"{add(one, number, page, painted, marks)} 0 R")
            else:
                painted += map(str, one.parts)
        elements[number - first - 1] = (
            f"<< /Type /StructElem /S /{part.kind} /P {parent} 0 R /Pg {7 + 2 * page} 0 R "
            f"/K [{' '.join(kids)}] /A << /O /Table {part.attributes} >> >>"
        )
        return number

    for page, parts in enumerate(pages):
        painted, marks = list[str](), list[int]()
        tops += [add(part, first, page, painted, marks) for part in parts if part.kind]
        painted += [str(one) for part in parts if not part.kind for one in part.parts]
        streams.append(content(*painted))
        parents.append(f"{page} [{' '.join(f'{number} 0 R' for number in marks)}]")
    kids = " ".join(f"{number} 0 R" for number in tops)
    root = f"<< /Type /StructTreeRoot /K [{kids}] /ParentTree << /Nums [{' '.join(parents)}] >> >>"
    return pdf_of(
        streams,
        page_entries=[f"/StructParents {page}" for page in range(len(pages))],
        form=f"/MarkInfo << /Marked true >> /StructTreeRoot {first} 0 R",
        more=tuple(one.encode() for one in (root, *elements)),
    )
