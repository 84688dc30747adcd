"""What a run has done so far: a line for the index it writes, then one for each file in it.

A file's line is written after its passages are committed, so what stands here is in the index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from qa_service.files import read_file
from qa_service.retrieval.manifest import (
    PROGRESS_FILE,
    FileEntry,
    IndexSettings,
    is_index,
    write_whole,
)


class _Head(msgspec.Struct, frozen=True):
    index: str
    settings: IndexSettings


class Progress:
    """The run that writes a collection's next index.

    Attributes:
        index: The name of the index's folder.
        entries: Its files, by name.
    """

    def __init__(
        self, folder: Path, index: str, settings: IndexSettings, entries: Iterable[FileEntry]
    ) -> None:
        self.index = index
        self.entries = {entry.name: entry for entry in entries}
        self._path = folder / PROGRESS_FILE
        write_whole(self._path, _lines([_Head(index, settings), *self.entries.values()]))

    @classmethod
    def load(cls, folder: Path, settings: IndexSettings) -> Progress | None:
        """The progress of a killed run; None if there is none, or if it wrote another index."""
        try:
            first, *lines = read_file(folder / PROGRESS_FILE).split(b"\n")
            head = msgspec.json.decode(first, type=_Head)
        except (OSError, msgspec.MsgspecError):
            return None
        is_ours = head.settings == settings and is_index(head.index)
        if not is_ours or not (folder / head.index).is_dir():
            return None
        return cls(folder, head.index, settings, _entries(lines))

    def add(self, entries: Iterable[FileEntry]) -> None:
        added = list(entries)
        with self._path.open("ab") as file:
            file.write(_lines(added))
            file.flush()
            os.fsync(file.fileno())
        self.entries.update((entry.name, entry) for entry in added)


def _lines(rows: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _entries(lines: Iterable[bytes]) -> Iterable[FileEntry]:
    """Those of whole lines: the last may have been cut off when the run was killed."""
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=FileEntry)
        except msgspec.MsgspecError:
            return
