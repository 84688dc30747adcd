"""A collection's folder.

    manifest.json      names the index that is served; replaced at once, last
    index-1b2c…/       tantivy's index, which does not change once the manifest names it,
                       and the passages' embeddings, if it has them
    index-07f3…/       the one before, which servers may have open until they look again
    index-9a40…/       what a run writes
    progress.jsonl     which files that has; a run that was killed goes on from it
    .lock              held by the one run that writes

Whoever holds the lock removes what neither the manifest nor the progress names.
A file's line in the progress is written after its passages are committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.errors import DamagedError, SetupError
from qa_service.files import read_file

FORMAT = 4
"""Changes with how documents are read, cut and indexed, and with what an index has of a passage."""

MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "progress.jsonl"
LOCK_FILE = ".lock"
INDEX = "index-"
EMBEDDINGS_FILE = "embeddings.int8"
"""In the folder of an index."""


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Index settings; changing one means rebuilding.

    Attributes:
        language: Whose stems words are reduced to; "none" for the words as they are.
        passage_tokens: About how many tokens a passage has.
        tantivy: The version that wrote it.
        encoder: The identity of what embedded the passages; "" if they are found by words alone.
    """

    format: int = FORMAT
    language: str
    passage_tokens: int
    tantivy: str
    encoder: str = ""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was indexed.

    Attributes:
        name: Its path in its folder.
        sha256: The hash of what it held; "" if that is not known.
        faults: How many of its parts were left out; 1 if all of it was.
        first_faults: The first few, and the last, which may say why reading ended.
    """

    name: str
    size_bytes: int
    sha256: str = ""
    documents: int = 0
    passages: int = 0
    faults: int = 0
    first_faults: tuple[str, ...] = ()


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """What searching needs of a manifest.

    Attributes:
        index: The name of the index's folder.
    """

    index: str
    settings: IndexSettings
    documents: int
    passages: int


class Manifest(ManifestHead, frozen=True, kw_only=True):
    """A collection's `manifest.json`.

    Attributes:
        index_before: The folder that was served before; "" if none was.
        versions: Of the packages that made it.
    """

    index_before: str
    versions: dict[str, str]
    files: tuple[FileEntry, ...]


class _Indexes(msgspec.Struct, frozen=True):
    index: str = ""
    index_before: str = ""


_Kind = TypeVar("_Kind", bound=ManifestHead)


def load_head(folder: Path) -> ManifestHead:
    """What is to be searched; a `SetupError` if this version cannot."""
    head = _load(folder, ManifestHead)
    if head.settings.format != FORMAT:
        raise _made_otherwise(folder)
    return head


def load_manifest(folder: Path) -> Manifest:
    """The manifest, also of another format: its settings say so."""
    return _load(folder, Manifest)


def _made_otherwise(folder: Path) -> SetupError:
    return SetupError(f"{folder} was made by another version: make it again with qa-index")


def _load(folder: Path, kind: type[_Kind]) -> _Kind:
    path = folder / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(read_file(path), type=kind)
    except FileNotFoundError:
        raise SetupError(f"{folder} is no collection: make one with qa-index") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not a collection's: {error}") from None
    if not is_index(manifest.index):
        raise _made_otherwise(folder)
    return manifest


def is_index(name: str) -> bool:
    """Whether a name is that of a folder of an index, which lies in the collection's own."""
    return name.startswith(INDEX) and Path(name).name == name


def served_indexes(folder: Path) -> list[str]:
    """The indexes that a manifest of any version names, the one that is served first."""
    try:
        found = msgspec.json.decode(read_file(folder / MANIFEST_FILE), type=_Indexes)
    except (OSError, msgspec.MsgspecError, ValueError):
        return []
    return [name for name in (found.index, found.index_before) if is_index(name)]


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest at once: from here on its index is what is served."""
    write_whole(folder / MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that after any crash it is the old or the new one."""
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
