"""What OpenVINO compiled of a model, kept in its folder: a folder for each version and processor.

    costs/openvino/KEY/NUMBER.blob       OpenVINO's own cache of the model with dynamic shapes
    costs/openvino/KEY/tokens-128.blob   the model compiled for one row of 128 tokens

A file of static shapes is mapped: to load it takes half of the time of compiling, and pages that
nobody reads belong to the kernel. OpenVINO's own cache is not used for them, since its key is
another each time that a model is reshaped; it writes them, without Python's lock.
"""

from __future__ import annotations

import contextlib
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

logger = logging.getLogger(__name__)

MAX_FOLDERS = 4
"""Combinations of version, processor, precision and threads that are kept, those used last."""
PARTIAL_S = 3600.0
"""A partial file older than this was left by a process that was killed."""
MAKING_S = 60.0
"""A partial file older than this is not waited for."""
PREFIX = "tokens-"
COPY_BYTES = 1 << 20

Compiled = TypeVar("Compiled")


class KeptShapes:
    """The files of one key.

    Args:
        root: The folder of all keys.
        key: All that a compiled model depends on.
        max_bytes: Of all files of static shapes in the key's folder; 0 keeps none.
        keeps: Whether anything may be written or removed at all.

    Attributes:
        options: OpenVINO's, by which it keeps the model with dynamic shapes; empty if it cannot.
    """

    def __init__(self, root: Path, key: str, max_bytes: int, *, keeps: bool = True) -> None:
        self._folder = root / hashlib.sha256(key.encode()).hexdigest()[:16]
        self._max_bytes = max_bytes
        self.options = {"CACHE_DIR": str(self._folder)}
        if not keeps:
            self.options, self._max_bytes = {}, 0
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            _remove_oldest(root)
            _remove_partial(self._folder)
        except OSError as error:
            logger.info("what is compiled is not kept for the next start: %s", error.strerror)
            self.options = {}
            self._max_bytes = 0

    def load(self, tokens: int) -> mmap.mmap | None:
        """Maps a length's file; the caller writes nothing into it. None if there is none."""
        try:
            with self._path(tokens).open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):  # missing, or empty
            return None

    def remove(self, tokens: int) -> None:
        """Removes a length's file, which is damaged: the model will be compiled again."""
        logger.warning("%s is damaged, and is removed", self._path(tokens))
        self._path(tokens).unlink(missing_ok=True)

    def keeping(self, tokens: int, compile_into: Callable[[dict[str, str]], Compiled]) -> Compiled:
        """Compiles, and keeps the file if there is room.

        Args:
            compile_into: Compiles with these further options of OpenVINO.
        """
        partial = self._make_partial(tokens)
        if partial is None:
            return compile_into({})
        try:
            compiled = compile_into({"CACHE_DIR": str(partial)})
            _take(partial, self._path(tokens))
        except OSError as error:
            logger.info("a compiled length is not kept: %s", error.strerror)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return compiled

    def is_in_the_making(self, tokens: int) -> bool:
        """Whether another process compiles a length."""
        since_s = time.time() - MAKING_S
        return any(used_s > since_s for used_s, _ in _used(self._folder.glob(f".{tokens}-*")))

    def _make_partial(self, tokens: int) -> Path | None:
        """A folder for a length's file in the making; None without room for the file."""
        with contextlib.suppress(OSError):
            if self._has_room():
                return Path(tempfile.mkdtemp(prefix=f".{tokens}-", dir=self._folder))
        return None

    def _has_room(self) -> bool:
        """Whether a file as large as the largest fits into the bound and, twice, on the disk."""
        if not self._max_bytes:
            return False
        sizes = {path: path.stat().st_size for path in self._folder.glob("*.blob")}
        kept = sum(size for path, size in sizes.items() if path.name.startswith(PREFIX))
        largest = max(sizes.values(), default=0)
        free = shutil.disk_usage(self._folder).free
        return kept + largest <= self._max_bytes and 2 * largest < free

    def _path(self, tokens: int) -> Path:
        return self._folder / f"{PREFIX}{tokens}.blob"


def _take(partial: Path, path: Path) -> None:
    """Moves what OpenVINO wrote to its place, without the line that its cache adds."""
    for blob in partial.glob("*.blob"):
        copy = blob.with_suffix(".copy")
        with blob.open("rb") as cached, copy.open("wb") as file:
            cached.readline()
            shutil.copyfileobj(cached, file, COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
        copy.replace(path)


def _remove_oldest(root: Path) -> None:
    """Removes the folders that were not used for longest; other processes may do the same."""
    for _, path in sorted(_used(root.iterdir()), reverse=True)[MAX_FOLDERS:]:
        shutil.rmtree(path, ignore_errors=True)


def _remove_partial(folder: Path) -> None:
    """Removes what killed processes have left."""
    for used_s, path in _used(folder.glob(".*")):
        if used_s < time.time() - PARTIAL_S:
            shutil.rmtree(path, ignore_errors=True)


def _used(paths: Iterable[Path]) -> Iterator[tuple[float, Path]]:
    """When each folder was last used, of those that are still there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                yield path.stat().st_mtime, path
