"""Questions from files, a row each: JSON lines, CSV, or SQuAD's JSON.

The name says which: `.jsonl`, `.csv`, `.json`, each perhaps with `.gz` behind it. A line of JSON
is a request as the wire has it; CSV has a header with at least `question` and `text`. A row
without an id gets its number, from 1. JSON lines and CSV are read as they are needed, so that a
file may hold millions.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from qa_service.data.squad import read_squad

FORMATS = (".jsonl", ".csv", ".json")
_MAX_CSV_FIELD = 1 << 27
_NUMBERS = ("top_k", "timeout_ms")
_encoder = msgspec.json.Encoder(order="deterministic")


class FileError(Exception):
    """A file cannot be used; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question.

    Attributes:
        number: Its place in the file, from 1.
        id: What its answer carries.
        body: The request as JSON.
    """

    number: int
    id: Any
    body: bytes

    @property
    def message_id(self) -> str:
        """The same for the same row, whenever and wherever it is read."""
        return hashlib.sha256(self.body).hexdigest()[:32]


def read_rows(path: Path) -> Iterator[Row]:
    """Reads a file's questions, in its order.

    Raises:
        FileError: It cannot be read, or is not in its name's format.
    """
    kind = _kind(path)
    try:
        yield from _numbered(_READERS[kind](path))
    except (OSError, ValueError, csv.Error, msgspec.DecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def count_rows(path: Path) -> int:
    """How many questions a file holds.

    Raises:
        FileError: It cannot be read.
    """
    if _kind(path) != ".jsonl":
        return sum(1 for _ in read_rows(path))
    try:
        with _open(path) as file:
            return sum(1 for line in file if not line.isspace())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _kind(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS:
        raise FileError(f"{path}: the name must end in {', '.join(FORMATS)}, or that with .gz")
    return kind


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8", newline=""))
    return path.open(encoding="utf-8", newline="")


def _numbered(requests: Iterator[dict[str, Any]]) -> Iterator[Row]:
    for number, request in enumerate(requests, 1):
        if request.get("id") is None:
            request["id"] = number
        yield Row(number, request["id"], _encoder.encode(request))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise FileError(f"{path}, line {number}: {error}") from error


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(_MAX_CSV_FIELD, sys.maxsize))
    with _open(path) as file:
        reader = csv.DictReader(file, strict=True)
        missing = {"question", "text"} - set(reader.fieldnames or ())
        if missing:
            raise FileError(f"{path}: its header names no {' and no '.join(sorted(missing))}")
        for row in reader:
            if None in row or None in row.values():
                raise FileError(f"{path}, line {reader.line_num}: not as many fields as the header")
            yield {name: _number(name, value) for name, value in row.items() if value}


def _number(name: str, value: str) -> str | float:
    return float(value) if name in _NUMBERS else value


def _squad(path: Path) -> Iterator[dict[str, Any]]:
    for item in read_squad(path):
        yield {"id": item.id, "question": item.question, "text": item.context}


_READERS = {".jsonl": _json_lines, ".csv": _csv, ".json": _squad}
