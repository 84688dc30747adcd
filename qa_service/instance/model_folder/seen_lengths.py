"""How often rows of each length ran: kept in the model's folder, so that the next start knows it.

All instances of a model write the same file, each what it began with and what it has counted since.
The last one wins: they see the same traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from qa_service.instance.model_folder.costs_dir import COSTS_DIR, keep

LENGTHS_FILE = "lengths.json"
FIRST_KEPT, KEPT_EVERY = 64, 1024
"""Rows until the counts are first written; they are written at each doubling, then at every so
many."""
MAX_ROWS = 1 << 14
"""At this many rows all counts are halved: old traffic counts for less."""


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
        found = (counts for path in paths if path and (counts := _kept(path)))
        self._counts = Counter(next(found, {}))
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


def _kept(path: Path) -> dict[int, int]:
    """The counts in a file; none if it is missing or damaged."""
    try:
        counts = msgspec.json.decode(path.read_bytes(), type=KeptLengths).num_rows
    except (OSError, msgspec.DecodeError):
        return {}
    return {tokens: rows for tokens, rows in counts.items() if tokens > 0 and rows > 0}
