"""The files of the folders that a collection is made from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import msgspec

from qa_service.errors import SetupError
from qa_service.files import sha256_of
from qa_service.retrieval.documents import Fault
from qa_service.retrieval.formats import FORMATS, TEMPLATES

_PACKED = (".json", ".jsonl")
"""Kinds that may have `.gz` behind them."""


SourceStamp = tuple[int, int, int]
"""A file's inode, and when it was written and changed, in ns: a copy may keep the first time."""


class SourceFile(msgspec.Struct, frozen=True):
    """A file to be indexed.

    Attributes:
        name: Its path in the folder that is read, in characters that can be shown.
        stamp: What changes when it is written, replaced, or may be read by others.
    """

    path: Path
    name: str
    size_bytes: int
    stamp: SourceStamp

    def is_as_found(self) -> bool:
        """Whether nobody has written it since it was listed."""
        try:
            return _stamp_of(self.path.stat()) == self.stamp
        except OSError:
            return False

    def sha256(self) -> str:
        """The hash of what it holds; "" if it cannot be read."""
        try:
            return sha256_of(self.path, follow_links=False)
        except OSError:
            return ""


class Found(msgspec.Struct, frozen=True):
    """What the folders hold: files of known kinds, by name, and the names of others.

    Attributes:
        faults: Folders that cannot be listed, and files that may not be looked at.
    """

    files: list[SourceFile]
    others: list[str]
    faults: list[Fault]


def format_of(name: str) -> str:
    """The kind of a file by its name, a key of `FORMATS`; "" for one that is not read."""
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122 - as in `_paths`
    if suffix == ".gz":
        suffix = PurePath(stem).suffix
        return suffix if suffix in _PACKED else ""
    if suffix in TEMPLATES:
        suffix = PurePath(stem).suffix
    return suffix if suffix in FORMATS else ""


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
        root = source.resolve()
        base = root if len(sources) == 1 and source.is_dir() else root.parent
        for path in _paths(root, leave_out, faults):
            name = _shown(path[len(str(base).rstrip("/")) + 1 :])
            try:
                file = _source_file(path, name)
            except OSError as error:
                faults.append(Fault(name, error.strerror or str(error)))
                continue
            if file is None:
                others.append(name)
            elif not (follow_links or str(file.path) == path or file.path.is_relative_to(root)):
                faults.append(Fault(name, "a link out of the folder (--follow_links)"))
            elif name in files and files[name].path != file.path:
                raise SetupError(f"two files are called {name}: {file.path} is the second")
            else:
                files[name] = file
    return Found([files[name] for name in sorted(files)], sorted(others), faults)


def _paths(source: Path, leave_out: Path, faults: list[Fault]) -> Iterator[str]:
    """The files below a path.

    As strings: a `Path` for each takes most of the time, and `qa-index --watch` lists again and
    again.
    """
    if not source.is_dir():
        yield str(source)
        return

    def on_error(error: OSError) -> None:
        faults.append(Fault(_shown(str(error.filename)), error.strerror or str(error)))

    hidden = leave_out.resolve()
    for folder, folders, names in os.walk(source, onerror=on_error):
        folders[:] = [name for name in folders if name[0] != "."]
        if hidden.name in folders and hidden.parent == Path(folder):
            folders.remove(hidden.name)
        here = folder.rstrip("/")
        yield from (f"{here}/{name}" for name in names if name[0] != ".")


def _source_file(path: str, name: str) -> SourceFile | None:
    """The file that a path leads to, unless it is of another kind, no regular file, or gone.

    Raises:
        OSError: It may not be looked at, or the disk or the network fails.
    """
    if not format_of(name):
        return None
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    real = Path(path)
    real = real.resolve() if real.is_symlink() else real
    return SourceFile(real, name, status.st_size, _stamp_of(status))


def _stamp_of(status: os.stat_result) -> SourceStamp:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _shown(name: str) -> str:
    """A name as UTF-8 can hold it: other bytes of the file system are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
