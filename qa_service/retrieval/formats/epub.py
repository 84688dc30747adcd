"""EPUB's books: the pages of the book's spine, one after another, as HTML is read."""

from __future__ import annotations

import io
import itertools
import posixpath
import zipfile
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed, UnreadableError
from qa_service.retrieval.formats.bounded import decoded, read_package, reading
from qa_service.retrieval.formats.html import parse_into
from qa_service.retrieval.formats.office_package import descendants, text_of
from qa_service.retrieval.layout import lay_out

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = frozenset({"application/xhtml+xml", "text/html"})
_MAX_PAGES = 10_000


def read_epub(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a book of EPUB 2 or 3 without its table of contents."""
    data = read_package(stream, max_bytes)
    out = BlockList()
    with reading("a book"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        container = Xml.fromstring(archive.read(_CONTAINER))
        book_file, *_ = descendants(container, "rootfile")
        path = book_file.attrib["full-path"]
        book = Xml.fromstring(archive.read(path))
        encrypted = set[str]()  # in many books fonts alone
        if _ENCRYPTION in archive.namelist():
            entries = descendants(Xml.fromstring(archive.read(_ENCRYPTION)), "CipherReference")
            encrypted = {unquote(entry.get("URI", "")) for entry in entries}
        items = {item.get("id", ""): item for item in descendants(book, "item")}
        for entry in itertools.islice(descendants(book, "itemref"), _MAX_PAGES):
            item = items.get(entry.get("idref", ""))
            if item is None or item.get("media-type") not in _PAGES:
                continue
            if "nav" in item.get("properties", "").split():
                continue
            href = unquote(item.get("href", ""))
            page = posixpath.normpath(posixpath.join(posixpath.dirname(path), href))
            if page in encrypted:
                raise UnreadableError("the book is encrypted")
            text = decoded(archive.read(page))
            parse_into(out, text, [0] * (1 + text.count("\n")))
    yield lay_out(Parsed(out.blocks, text_of(next(descendants(book, "title"), None))), name)
