"""Where models are kept; files that others write: perhaps no files, texts in several encodings."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as the next one does
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAX_MARK_BYTES = 4

SAVED_MODELS = Path("saved_models")


def saved_models() -> Path:
    """Where models are prepared: `saved_models`, if the working directory has it, or the user's."""
    return SAVED_MODELS if SAVED_MODELS.is_dir() else user_models()


def user_models() -> Path:
    """The user's folder of prepared models: `qa-server` in XDG's folder of data."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "qa-server"


def encoding_of(data: bytes) -> str:
    """The encoding that a byte order mark at the beginning names; empty without one."""
    return next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")


def read_text(path: Path) -> str:
    """Reads a text in the encoding of its byte order mark, else in UTF-8."""
    return decode(path.read_bytes())


def decode(data: bytes) -> str:
    """A text in the encoding of its byte order mark, else in UTF-8; or a `UnicodeDecodeError`."""
    return data.decode(encoding_of(data) or "utf-8")


def is_there(path: Path) -> bool:
    """Whether it is a file that may be looked at: `Path.is_file` raises where it may not."""
    try:
        return path.is_file()
    except OSError:
        return False


Stamp = tuple[int, int, int] | None


def stamp_of(path: Path) -> Stamp:
    """What changes when a file is written or replaced: inode, size, time; None without a file."""
    try:
        its = path.stat()
    except OSError:
        return None
    return its.st_ino, its.st_size, its.st_mtime_ns


def read_file(path: Path) -> bytes:
    """Reads a file, and nothing that could make it wait for a writer, as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def link_or_copy(file: str | Path, new: str | Path) -> None:
    """Links a file into which nobody writes any more; copies it where links cannot be."""
    try:
        os.link(file, new)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(file, new)


def sha256_of(path: Path, *, follow_links: bool = True) -> str:
    """Hashes a file, opened as `open_regular` does; 90 MB take about 0.1 s."""
    with open_regular(path, follow_links=follow_links) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: Path | bytes, *, follow_links: bool = True) -> BufferedReader:
    """Opens a file to read it; never a FIFO, a socket or a device, which may be there by now.

    Raises:
        OSError: It cannot be opened, is no regular file, or is a link that is not to be followed.
    """
    links = 0 if follow_links else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | links)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(descriptor, "rb")
