"""The checksums that tantivy writes at the end of its files."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.errors import DamagedError
from qa_service.files import open_regular, read_file

META_FILE, _MANAGED_FILE = "meta.json", ".managed.json"
_FOOTER = re.compile(rb'\{"version":\{[^{}]*\},"crc":(\d+)\}....\x39\x05\0\0\Z', re.DOTALL)
"""JSON, its length, and 1337, as tantivy's `directory/footer.rs` writes them."""
_MAX_FOOTER_BYTES = 1000
_READ_BYTES = 1 << 20
_Kind = TypeVar("_Kind")


class _Deletes(msgspec.Struct):
    opstamp: int


class _Segment(msgspec.Struct):
    segment_id: str
    deletes: _Deletes | None


class _Meta(msgspec.Struct):
    segments: list[_Segment]


def check_files(path: Path) -> None:
    """Compares a committed index with its checksums: damage ends a process that writes to it.

    Raises:
        DamagedError: It differs, or is not there.
    """
    try:
        meta = _read_json(path / META_FILE, _Meta)
        ids = {segment.segment_id.replace("-", ""): segment.deletes for segment in meta.segments}
        stems = {*ids, *(f"{id_}.{its.opstamp}" for id_, its in ids.items() if its)}
        for file in map(path.joinpath, _read_json(path / _MANAGED_FILE, list[str])):
            if file.stem in stems and not _is_intact(file):
                raise DamagedError(f"{file} is damaged")
    except OSError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _read_json(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from None


def _is_intact(path: Path) -> bool:
    """Whether a file has the CRC-32 that stands in its footer."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_FOOTER_BYTES))
        footer = _FOOTER.search(file.read())
        if footer is None:
            return False
        left, crc = size - len(footer[0]), 0
        file.seek(0)
        while data := file.read(min(left, _READ_BYTES)):
            crc, left = zlib.crc32(data, crc), left - len(data)
    return crc == int(footer[1])
