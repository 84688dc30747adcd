"""What OpenVINO compiled of a model, kept in its folder: a folder for each version and processor.

    costs/openvino/KEY/any-length.blob   the model with dynamic shapes
    costs/openvino/KEY/tokens-128.blob   the model compiled for one row of 128 tokens

To load a file takes half of the time of compiling. Each is a whole model, whose weights OpenVINO
goes on reading where they are. So a file ends with its hash, and what is used is a copy that
nobody else can write. OpenVINO's own cache finds no files again, since its key is another each time
that a model is reshaped; it writes them, without Python's lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from qa_service.files import read_file

logger = logging.getLogger(__name__)

MAX_FOLDERS = 4
"""Combinations of version, processor, precision and threads that are kept, those used last."""
PARTIAL_S = 3600.0
"""A partial file older than this was left by a process that was killed."""
MAKING_S = 60.0
"""A partial file older than this is not waited for."""
ANY_LENGTH = "any-length"
"""The name of the model with dynamic shapes, which is kept whatever the bound."""
FORMAT = 2
"""Part of the key: files of older versions have no hash."""
DIGEST_BYTES = hashlib.sha256().digest_size
COPY_BYTES = 1 << 20

Compiled = TypeVar("Compiled")
Kept = mmap.mmap | memoryview
"""The bytes that OpenVINO exported."""


class KeptShapes:
    """The files of one key.

    Args:
        root: The folder of all keys.
        key: All that a compiled model depends on.
        max_bytes: Of all files of static shapes in the key's folder; 0 keeps none.
        is_trusted: Whether to load and keep anything.
        keeps: Whether anything may be written or removed at all.
    """

    def __init__(
        self, root: Path, key: str, max_bytes: int, *, is_trusted: bool = True, keeps: bool = True
    ) -> None:
        self._folder = root / hashlib.sha256(f"{FORMAT} {key}".encode()).hexdigest()[:16]
        self._max_bytes = max_bytes
        self._is_trusted, self._keeps = is_trusted, keeps
        self._is_writable = is_trusted and keeps
        if not keeps:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            by_use = sorted(_used(root.iterdir()), reverse=True)
            left_over = [path for _, path in by_use[MAX_FOLDERS:]]
            killed_s = time.time() - PARTIAL_S
            left_over += [path for s, path in _used(self._folder.glob(".*")) if s < killed_s]
            for path in left_over:  # which other processes may remove too
                shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            logger.info("what is compiled is not kept for the next start: %s", error.strerror)
            self._is_writable = False

    def load(self, name: str) -> Kept | None:
        """What is kept under a name; the caller writes nothing into it.

        None if there is nothing, or if it is not what was written, which removes it.
        """
        if not self._is_trusted:
            return None
        try:
            data = bytearray(read_file(self._path(name)))  # OpenVINO takes only what is writable
        except OSError:
            return None
        content, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        if not content or hashlib.sha256(content).digest() != digest:
            self.remove(name, "is damaged")
            return None
        # A copy that no other process can write, in pages that the kernel can drop: its file has
        # no name. Without room for it, the content stays in memory.
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(content)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return content

    def remove(self, name: str, why: str) -> None:
        """Removes a file, if it is there: the model will be compiled again."""
        if self._keeps and self._path(name).exists():
            logger.warning("%s %s, and is removed", self._path(name), why)
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)

    def keeping(self, name: str, compile_into: Callable[[dict[str, str]], Compiled]) -> Compiled:
        """Compiles, and keeps the file if there is room.

        Args:
            compile_into: Compiles with these further options of OpenVINO.
        """
        partial = None
        with contextlib.suppress(OSError):
            if self._is_writable and self._has_room(name):
                partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self._folder))
        if partial is None:
            return compile_into({})
        try:
            compiled = compile_into({"CACHE_DIR": str(partial)})
            _take(partial, self._path(name))
        except OSError as error:
            logger.info("what is compiled is not kept: %s", error.strerror)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return compiled

    def is_in_the_making(self, name: str) -> bool:
        since_s = time.time() - MAKING_S
        return any(used_s > since_s for used_s, _ in _used(self._folder.glob(f".{name}-*")))

    def _has_room(self, name: str) -> bool:
        """Whether a file as large as the largest fits into the bound and, twice, on the disk."""
        sizes = {path: path.stat().st_size for path in self._folder.glob("*.blob")}
        kept = sum(size for path, size in sizes.items() if path != self._path(ANY_LENGTH))
        largest = max(sizes.values(), default=0)
        is_bounded = name == ANY_LENGTH or kept + largest <= self._max_bytes
        return is_bounded and 2 * largest < shutil.disk_usage(self._folder).free

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.blob"


def name_of(tokens: int) -> str:
    return f"tokens-{tokens}"


def _take(partial: Path, path: Path) -> None:
    """Moves what OpenVINO wrote to its place, with its hash for the line that its cache adds.

    Raises:
        OSError: It is not written. OpenVINO says nothing where it writes none: the disk is full.
    """
    blobs = list(partial.glob("*.blob"))
    if not blobs:
        raise OSError(errno.EIO, "OpenVINO could not write it")
    for blob in blobs:
        copy, digest = blob.with_suffix(".copy"), hashlib.sha256()
        with blob.open("rb") as cached, copy.open("wb") as file:
            cached.readline()
            while piece := cached.read(COPY_BYTES):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        copy.replace(path)


def _used(paths: Iterable[Path]) -> Iterator[tuple[float, Path]]:
    """When each folder was last used, of those that are still there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                yield path.stat().st_mtime, path
