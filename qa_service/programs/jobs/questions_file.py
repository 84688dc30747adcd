"""Questions from files, a row each: JSON lines, CSV, or SQuAD's JSON.

The name decides: `.jsonl`, `.csv` or `.json`, each also with `.gz`. A line of JSON is a request of
the wire; CSV has a header with at least `question` and `text` or `collection`; commas, semicolons
or tabs separate its fields. Both may have a byte order mark, and with one be UTF-16. Where one
collection answers all, texts are left out. A row without an id gets its number, from 1. JSON lines
and CSV are streamed, so that a file may hold millions. A line that cannot be read is a row with a
`fault`, and fails alone.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from qa_service.data.squad import read_squad
from qa_service.errors import SetupError
from qa_service.files import MAX_MARK_BYTES, encoding_of
from qa_service.wire.fields import NUMBERS

FORMATS = (".jsonl", ".csv", ".json")
_MAX_CSV_FIELD = 1 << 27
"""Far above any server's `--max_frame_bytes`, which decides how long a text may be."""
_DELIMITERS = (",", ";", "\t")
"""Of those that a header has as often, the first is taken."""
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError, csv.Error)
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(dict[str, Any])


class FileError(SetupError):
    """A file cannot be used."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question.

    Attributes:
        number: Its place in the file, from 1.
        id: Copied into the answer.
        fault: Why the row is no request; empty for a request.
    """

    number: int
    id: Any
    body: bytes
    fault: str = ""

    @property
    def message_id(self) -> str:
        """A hash of the request: always the same for the same row."""
        return hashlib.sha256(self.body).hexdigest()[:32]


def read_rows(path: Path, collection: str | None = None) -> Iterator[Row]:
    """Reads a file's questions, in its order; a collection answers them in place of their texts.

    Raises:
        FileError: The file cannot be read, or is not in the format of its suffix.
    """
    kind = _kind(path)
    try:
        for number, request in enumerate(_READERS[kind](path, collection is None), 1):
            yield _row(number, request, collection)
    except _UNREADABLE as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def count_rows(path: Path, collection: str | None = None) -> int:
    """How many questions a file holds; `FileError` if it cannot be read."""
    if _kind(path) != ".jsonl":
        return sum(1 for _ in read_rows(path, collection))
    try:
        with _open_text(path) as file:
            return sum(1 for line in file if not line.isspace())
    except _UNREADABLE as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _kind(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS:
        raise FileError(f"{path}: the name must end in {', '.join(FORMATS)}, or that with .gz")
    return kind


def _open(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is a pipe or a device, which is not read twice: make a file of it")
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _open_text(path: Path) -> TextIOWrapper:
    """Opens a text by its byte order mark, if it has one.

    Bytes that are not UTF-8 become surrogates, which JSON cannot hold: a fault of their row.
    """
    with _open(path) as file:
        encoding = encoding_of(file.read(MAX_MARK_BYTES)) or "utf-8"
    return TextIOWrapper(_open(path), encoding, errors="surrogateescape", newline="")


def _row(number: int, request: dict[str, Any] | str, collection: str | None) -> Row:
    """A row of a request, or of a fault in words."""
    if isinstance(request, str):
        return Row(number, number, b"", request)
    if collection is not None:
        request = {**request, "collection": collection}
        request.pop("text", None)
    if request.get("id") is None:
        request["id"] = number
    try:
        return Row(number, request["id"], _encoder.encode(request))
    except (ValueError, RecursionError) as error:
        return Row(number, number, b"", f"row {number}: {error}")


def _json_lines(path: Path, _: bool) -> Iterator[dict[str, Any] | str]:
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                yield _decoder.decode(line.encode(errors="surrogateescape"))
            except (ValueError, RecursionError) as error:
                yield f"line {number}: {error}"


def _csv(path: Path, needs_text: bool) -> Iterator[dict[str, Any] | str]:
    csv.field_size_limit(min(_MAX_CSV_FIELD, sys.maxsize))
    with _open_text(path) as file:
        header = file.readline()
        file.seek(0)
        delimiter = max(_DELIMITERS, key=header.count)
        reader = csv.DictReader(file, strict=True, delimiter=delimiter)
        names = reader.fieldnames or ()
        missing = [] if "question" in names else ["question"]
        if needs_text and not {"text", "collection"} & set(names):
            missing.append("text")
        if missing:
            found = ", ".join(names) or "nothing"
            raise FileError(f"{path}: its header names no {' and no '.join(missing)}, but {found}")
        while True:
            try:
                row = next(reader)
                if None in row or None in row.values():
                    raise ValueError("not as many fields as the header")
                yield {name: _number(name, value) for name, value in row.items() if value}
            except StopIteration:
                return
            except ValueError as error:
                yield f"line {reader.line_num}: {error}"
            except csv.Error as error:  # the reader counts a line only after reading it
                yield f"after line {reader.line_num}: {error}"


def _number(name: str, value: str) -> str | float:
    if name not in NUMBERS:
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def _squad(path: Path, _: bool) -> Iterator[dict[str, Any]]:
    for item in read_squad(path):
        yield {"id": item.id, "question": item.question, "text": item.context}


_READERS: dict[str, Callable[[Path, bool], Iterator[dict[str, Any] | str]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".json": _squad,
}
