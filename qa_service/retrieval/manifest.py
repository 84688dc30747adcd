"""A collection's folder.

    manifest.json      names the index that is served; replaced at once, last
    index-1b2c…/       tantivy's index, which does not change once the manifest names it,
                       and the passages' embeddings, if it has them
    index-07f3…/       the one before, which servers may have open until they look again
    index-9a40…/       what a run writes
    progress.jsonl     which files that has; a run that was killed goes on from it
    .lock              held by the one run that writes

Whoever holds the lock removes what neither the manifest nor the progress names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.errors import DamagedError, SetupError
from qa_service.files import read_file

FORMAT = 3
"""Changes with how documents are read, cut and indexed."""
FIELDS = 1
"""Changes with what an index has of a passage; an older index is searched without the rest."""

MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "progress.jsonl"
LOCK_FILE = ".lock"
INDEX = "index-"


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Index settings; changing one means rebuilding.

    Attributes:
        language: Whose stems words are reduced to; "none" for the words as they are.
        passage_tokens: About how many tokens a passage has.
        tantivy: The version that wrote it.
        encoder: The identity of what embedded the passages; "" if they are found by words alone.
        fields: `FIELDS` when it was made.
    """

    format: int = FORMAT
    fields: int = 0
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
    return _load(folder, ManifestHead)


def load_manifest(folder: Path) -> Manifest:
    return _load(folder, Manifest)


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
    if manifest.settings.format != FORMAT or not is_index(manifest.index):
        raise SetupError(f"{folder} was made by another version: make it again with qa-index")
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
