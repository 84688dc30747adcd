"""The files of the folders that a collection is made from."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import msgspec

from qa_service.errors import SetupError
from qa_service.files import open_regular
from qa_service.retrieval.documents import Fault
from qa_service.retrieval.formats import FORMATS
from qa_service.retrieval.formats.markups import TEMPLATES

_PACKED = (".json", ".jsonl")
"""Kinds that may have `.gz` behind them."""


class SourceFile(msgspec.Struct, frozen=True):
    """A file to be indexed.

    Attributes:
        name: Its path in the folder that is read, in characters that can be shown.
    """

    path: Path
    name: str
    size_bytes: int

    def sha256(self) -> str:
        """The hash of what it holds; "" if it cannot be read."""
        try:
            with open_regular(self.path, follow_links=False) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return ""


class Found(msgspec.Struct, frozen=True):
    """What the folders hold: files of known kinds, by name, and the names of others.

    Attributes:
        faults: Folders that cannot be listed.
    """

    files: list[SourceFile]
    others: list[str]
    faults: list[Fault]


def format_of(name: str) -> str:
    """The kind of a file by its name, a key of `FORMATS`; "" for one that is not read."""
    path = PurePath(name.lower())
    if path.suffix == ".gz":
        path = path.with_suffix("")
        return path.suffix if path.suffix in _PACKED else ""
    if path.suffix in TEMPLATES:
        path = path.with_suffix("")
    return path.suffix if path.suffix in FORMATS else ""


def find_files(sources: Sequence[Path], leave_out: Path, *, follow_links: bool = False) -> Found:
    """Lists the files of folders, or files given as they are.

    Hidden files and folders, links to folders, and what is no regular file are left alone. A link
    to a file outside its folder is left out and named.

    Args:
        follow_links: Whether links to files outside the folder are followed.
        sources: Folders and files. With more than one, names begin with the folder's own.
        leave_out: A folder that is not entered: the collection itself.

    Raises:
        SetupError: A source is not there, or two files have the same name.
    """
    files: dict[str, SourceFile] = {}
    faults: list[Fault] = []
    others: list[str] = []
    for source in sources:
        if not source.exists():
            raise SetupError(f"{source} is not there")
        base = source if len(sources) == 1 and source.is_dir() else source.resolve().parent
        root = source.resolve()
        for path in _paths(root if base != source else source, leave_out, faults):
            file = _source_file(path, base)
            if file and path != source and not follow_links and not file.path.is_relative_to(root):
                faults.append(Fault(file.name, "a link out of the folder (--follow_links)"))
            elif file is None:
                others.append(_shown(path.relative_to(base).as_posix()))
            elif file.name in files and files[file.name].path != file.path:
                raise SetupError(f"two files are called {file.name}: {file.path} is the second")
            else:
                files[file.name] = file
    return Found([files[name] for name in sorted(files)], sorted(others), faults)


def _paths(source: Path, leave_out: Path, faults: list[Fault]) -> Iterator[Path]:
    if not source.is_dir():
        yield source
        return

    def on_error(error: OSError) -> None:
        faults.append(Fault(_shown(str(error.filename)), error.strerror or str(error)))

    hidden = leave_out.resolve()
    for folder, folders, names in os.walk(source, onerror=on_error):
        here = Path(folder)
        folders[:] = [n for n in folders if n[0] != "." and (here / n).resolve() != hidden]
        yield from (here / name for name in names if name[0] != ".")


def _source_file(path: Path, base: Path) -> SourceFile | None:
    """The file that a path leads to, unless it is of another kind, or no regular file."""
    name = _shown(path.relative_to(base).as_posix())
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or not format_of(name):
        return None
    return SourceFile(path.resolve(), name, status.st_size)


def _shown(name: str) -> str:
    """A name as UTF-8 can hold it: other bytes of the file system are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
