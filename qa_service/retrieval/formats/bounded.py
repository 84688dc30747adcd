"""Whole files, read within a bound, and what they are called."""

from __future__ import annotations

from pathlib import PurePath
from typing import BinaryIO

from qa_service.retrieval.documents import Document, Heading, UnreadableError, shortened


def read_bytes(stream: BinaryIO, max_bytes: int) -> bytes:
    """All of a file.

    Raises:
        UnreadableError: It is longer than the bound.
    """
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnreadableError(f"longer than {max_bytes} bytes (--max_file_bytes)")
    return data


def read_text(stream: BinaryIO, max_bytes: int) -> str:
    """All of a file of UTF-8, its line ends as they are.

    Raises:
        UnreadableError: It is longer than the bound, or not a text in UTF-8.
    """
    data = read_bytes(stream, max_bytes)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        ) from None
    if "\0" in text:
        raise UnreadableError("not a text: it holds a zero byte")
    return text


def titled(name: str, text: str, headings: tuple[Heading, ...] = (), title: str = "") -> Document:
    """A document; without a title it has that of its first heading, or its file's name."""
    first = headings[0].text if headings else title_of(name)
    return Document(name, shortened(title) or first, text, headings)


def title_of(name: str) -> str:
    """A title for a document that has none: its file's name, without what says the kind."""
    return shortened(PurePath(name).stem.replace("_", " "))
