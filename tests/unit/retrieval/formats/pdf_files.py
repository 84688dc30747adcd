"""PDF files, written by hand."""

from __future__ import annotations


def pdf_file(*pages: str, title: str = "") -> bytes:
    """A page for each text."""
    streams = [f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET".encode() for words in pages]
    return pdf_of([_stream(data) for data in streams], title)


def pdf_of(streams: list[bytes], title: str = "") -> bytes:
    """A page for each content stream."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(streams)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>".encode(),
    ]
    for number, stream in enumerate(streams):
        page = "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >>"
        objects += [f"{page} /Contents {6 + 2 * number} 0 R >>".encode(), stream]
    data = b"%PDF-1.4\n"
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return data + head + table + trailer % (len(objects) + 1, len(data))


def packed_stream(data: bytes, filters: int) -> bytes:
    """A stream whose data is packed by zlib already, this many times."""
    names = "/FlateDecode " * filters
    return _stream(data, f"/Filter [{names}]")


def _stream(data: bytes, entries: str = "") -> bytes:
    head = f"<< /Length {len(data)} {entries} >>\nstream\n".encode()
    return head + data + b"\nendstream"
