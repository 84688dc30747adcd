"""Whole files, read within a bound, and their bytes as text."""

from __future__ import annotations

import codecs
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import BinaryIO

from qa_service.errors import SetupError
from qa_service.files import encoding_of
from qa_service.installation import load
from qa_service.retrieval.documents import UnreadableError

_DECLARED = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*(?P<html>[\w.:-]+)"
    rb"|<\?xml[^>]{0,100}?encoding\s*=\s*[\"'](?P<xml>[\w.:-]+)"
    rb"|^[ \t]*(?:#|\.\.|%|<!--).{0,40}?coding[:=][ \t]*(?P<line>[\w.-]+)",
    re.IGNORECASE,
)
_DECLARED_WITHIN_BYTES = 2048
_MEANT = {
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
}
"""What HTML's standard has these names mean."""
_HIGH_BYTES = re.compile(rb"[\x80-\xff]+")
_NOT_WESTERN = re.compile(
    rb"[\x81\x8d\x8f\x90\x9d\xff]|[A-Za-z][\xa1-\xac\xae-\xb6\xb8-\xbf\xd7\xf7][A-Za-z]"
)
"""What cp1252 does not have, nobody writes, or is a sign within a word."""
_PACKAGE_ERRORS = (
    *(AttributeError, IndexError, KeyError, OSError, RuntimeError, SyntaxError, ValueError),
    *(EOFError, zipfile.BadZipFile, zlib.error),
)
"""What libraries raise over a zip archive that is no document of their kind."""
_MAX_NUL_SHARE = 0.01
COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How a file begins that Office encrypts, or wrote before 2007."""


def library(module: str, package: str, kind: str) -> ModuleType:
    """The library that reads a kind of file, imported when there is one."""
    try:
        return load(module, f"{kind} needs", package, "collections")
    except SetupError as error:
        raise UnreadableError(str(error)) from None


def read_bytes(stream: BinaryIO, max_bytes: int) -> bytes:
    """All of a file.

    Raises:
        UnreadableError: It is longer than the bound.
    """
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnreadableError(f"longer than {max_bytes} bytes (--max_file_bytes)")
    return data


def read_package(stream: BinaryIO, max_bytes: int) -> bytes:
    """All of a file that is a zip archive.

    Raises:
        UnreadableError: It is none, or longer than the bound, also unpacked.
    """
    data = read_bytes(stream, max_bytes)
    if data.startswith(COMPOUND_FILE):
        raise UnreadableError(
            "it is encrypted, or of Office before 2007: save it anew as .docx, .xlsx or .pptx"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError) as error:
        raise UnreadableError(f"not a zip archive: {error}") from None
    if size > max_bytes:
        raise UnreadableError(f"unpacked longer than {max_bytes} bytes (--max_file_bytes)")
    return data


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """What a library raises over a package is an `UnreadableError`: it is none of the kind."""
    try:
        yield
    except RecursionError:
        raise UnreadableError("it is nested too deep") from None
    except _PACKAGE_ERRORS as error:
        raise UnreadableError(f"not {kind}: {error}") from None


def read_text(stream: BinaryIO, max_bytes: int) -> str:
    """All of a file: in the encoding that its mark or it itself says, else in UTF-8 or cp1252.

    Raises:
        UnreadableError: It is longer than the bound, or not a text in that encoding.
    """
    return decoded(read_bytes(stream, max_bytes))


def decoded(data: bytes) -> str:
    """A text's bytes as text, without a byte order mark.

    Raises:
        UnreadableError: They are none in their encoding.
    """
    if marked := encoding_of(data):
        return _decoded(data, marked)
    found = _DECLARED.search(data[:_DECLARED_WITHIN_BYTES])
    encoding = _known(found[found.lastgroup or 0]) if found else "utf-8"
    try:
        text = _decoded(data, encoding)
    except UnreadableError:
        if encoding != "utf-8" or not _is_western(data):
            raise
        text = _decoded(data, "cp1252")
    if text.count("\0") > _MAX_NUL_SHARE * len(text):
        raise UnreadableError("not a text: it holds zero bytes (UTF-16 needs its mark)")
    return text


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        shown = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise UnreadableError(f"not {error.encoding.upper()}: {shown}") from None


def _is_western(data: bytes) -> bool:
    """Whether a text reads as Windows' Western letters, as Excel for Windows writes it.

    Few of them are next to each other; in other scripts and in UTF-8 there are several in a row.
    Signs such as `³` in a word are letters of another code page.
    """
    runs = [len(run) for run in _HIGH_BYTES.findall(data)]
    return 4 * sum(one for one in runs if one > 2) < sum(runs) and not _NOT_WESTERN.search(data)


def _known(declared: bytes) -> str:
    """The encoding of a declaration; UTF-8 if it is none of a text that reads as ASCII does."""
    name = declared.decode("ascii", "replace").lower()
    try:
        is_text = codecs.lookup(name)._is_text_encoding
    except LookupError:
        return "utf-8"
    is_wide = name.startswith(("utf-16", "utf-32", "utf16", "utf32", "utf-8", "utf8"))
    return "utf-8" if is_wide or not is_text else _MEANT.get(name, name)
