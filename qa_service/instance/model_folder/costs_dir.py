"""A model's `costs` folder: what was measured of it on this machine, kept for the next start.

Among it is how often rows of each length ran. All instances of a model write that file, each what
it began with and what it has counted since. The last one wins: they see the same traffic.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.files import read_file

logger = logging.getLogger(__name__)

_Kind = TypeVar("_Kind")

COSTS_DIR = "costs"
LENGTHS_FILE = "lengths.json"
FIRST_KEPT, KEPT_EVERY = 64, 1024
"""Rows until the counts are first written; they are written at each doubling, then at every so
many."""
MAX_ROWS = 1 << 14
"""At this many rows all counts are halved: old traffic counts for less."""


def kept_path(model_dir: Path, key: bytes, kind: str = "") -> Path:
    """The file of what was measured; `key` names all that this depends on."""
    return model_dir / COSTS_DIR / f"{kind}{hashlib.sha256(key).hexdigest()[:16]}.json"


def keep(path: Path, measured: msgspec.Struct) -> None:
    """Writes a table as JSON; logs if it cannot: a model's folder may be read-only."""
    partial = path.with_suffix(f".{os.getpid()}")
    encoded = msgspec.json.format(msgspec.json.encode(measured), indent=2)
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            partial.write_bytes(encoded + b"\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        logger.info("what was measured is not kept for the next start: %s", error.strerror)


def read_kept(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Reads what `keep` has written; None if it is missing, or damaged, which is logged."""
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.warning("%s cannot be read, and is made again: %s", path, error)
        return None


class KeptLengths(msgspec.Struct, frozen=True):
    """The file: how many rows of each length ran; a length in tokens, padding included."""

    num_rows: dict[int, int]


class SeenLengths:
    """Counts the rows of each length.

    Args:
        model_dir: Whose file is read and written; None counts for this process alone.
        former_dir: The folder of the version that this one replaces, which is read if the model's
            own has no counts.
    """

    def __init__(self, model_dir: Path | None = None, former_dir: Path | None = None) -> None:
        self._path = model_dir and lengths_file(model_dir)
        paths = [self._path, former_dir and lengths_file(former_dir)]
        files = (read_kept(path, KeptLengths) for path in paths if path)
        counts = (
            {tokens: rows for tokens, rows in kept.num_rows.items() if tokens > 0 and rows > 0}
            for kept in files
            if kept
        )
        self._counts = Counter(next(filter(None, counts), {}))
        self._num_rows = 0
        self._keep_at = FIRST_KEPT

    def __bool__(self) -> bool:
        return bool(self._counts)

    def count(self, tokens: int) -> int:
        """Counts a row of a length; returns how many have been counted of it."""
        num_rows = self._counts[tokens] + 1
        self.add({tokens: 1})
        return num_rows

    def add(self, num_rows: Mapping[int, int]) -> None:
        self._counts.update(num_rows)
        self._num_rows += sum(num_rows.values())
        if self._num_rows >= self._keep_at:
            self._keep_at = self._num_rows + min(self._num_rows, KEPT_EVERY)
            if self._counts.total() >= MAX_ROWS:
                halves = {tokens: count // 2 for tokens, count in self._counts.items()}
                self._counts = Counter({tokens: half for tokens, half in halves.items() if half})
            if self._path:
                keep(self._path, KeptLengths(dict(self._counts)))

    def most_seen(self, at_least: int) -> list[int]:
        """The lengths with that many rows, those with the most first."""
        counts = list(self._counts.items())  # at once: another thread may be counting
        counts.sort(key=lambda item: (-item[1], item[0]))
        return [tokens for tokens, num_rows in counts if num_rows >= at_least]


def lengths_file(model_dir: Path) -> Path:
    return model_dir / COSTS_DIR / LENGTHS_FILE
