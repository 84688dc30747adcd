"""The embeddings of an index's passages: a file of int8, a row each, and their search.

A passage's row is its field `row` in tantivy's index. Rows that no passage has are zeros, which no
question is near to; the next run fills them first. All rows are compared with a question: 100,000
of 384 values take 10 ms of an AVX2 core, as long as with a vector library's exact search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_service.errors import DamagedError, SetupError
from qa_service.retrieval.encoder import Encoder, FloatArray

EMBEDDINGS_FILE = "embeddings.int8"

SCALE = 320.0
"""A value of 1 is stored as this. Values of a vector of length 1 with hundreds of dimensions hardly
exceed 0.3; beyond 127 / 320 they are cut."""

BATCH_PASSAGES = 128
"""Are embedded by one thread at a time: enough to have batches of like lengths."""
_BLOCK_ROWS = 1024
"""Rows that are compared at a time: they fit into a core's cache as float32."""

Int8Array = npt.NDArray[np.int8]
IntArray = npt.NDArray[np.int64]


class Embeddings:
    """The embeddings of an index that does not change, mapped; any number of threads may search."""

    def __init__(self, index: Path, dimensions: int) -> None:
        """Maps the file.

        Raises:
            DamagedError: It is not there, or has part of a row.
        """
        path = index / EMBEDDINGS_FILE
        try:
            size = path.stat().st_size
            if not size or size % dimensions:
                raise ValueError(f"{size} bytes are no rows of {dimensions}")
            shape = (size // dimensions, dimensions)
            self._rows: Int8Array = np.memmap(path, np.int8, "r", shape=shape)
        except (OSError, ValueError) as error:
            raise DamagedError(f"{path} cannot be opened: {error}") from None

    def cosines(self, question: FloatArray) -> FloatArray:
        """The product of each row with a question's embedding: float32 [rows]."""
        number, dimensions = self._rows.shape
        products = np.empty(number, np.float32)
        block = np.empty((_BLOCK_ROWS, dimensions), np.float32)
        for start in range(0, number, _BLOCK_ROWS):
            rows = self._rows[start : start + _BLOCK_ROWS]
            block[: len(rows)] = rows
            np.dot(block[: len(rows)], question, out=products[start : start + len(rows)])
        products /= SCALE
        return products


def best_rows(cosines: FloatArray, count: int, among: IntArray | None = None) -> IntArray:
    """The numbers of the rows with the largest cosines, in no order.

    Args:
        among: The rows that may be found; None for all.
    """
    if among is not None:
        return among[best_rows(cosines[among], count)]
    if count >= len(cosines):
        return np.arange(len(cosines))
    found: IntArray = np.argpartition(cosines, -count)[-count:]
    return found


class EmbeddingWriter:
    """Embeds passages in threads, and writes their rows; nothing counts before `flush`.

    Each method raises `SetupError` if the file cannot be written.
    """

    def __init__(
        self, index: Path, live_rows: Iterable[int], encoder: Encoder, num_threads: int
    ) -> None:
        """Opens an index's file, or makes it.

        Args:
            live_rows: Those that passages have; all others are free.

        Raises:
            DamagedError: A passage's row is not there.
        """
        self._path = index / EMBEDDINGS_FILE
        self._encoder = encoder
        self._width = encoder.manifest.dimensions
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._num_rows = os.fstat(self._file).st_size // self._width
        live = set(live_rows)
        if max(live, default=-1) >= self._num_rows:
            os.close(self._file)
            raise DamagedError(f"{self._path} is damaged: it has {self._num_rows} rows")
        self._free = self._clear(live)
        self._rows: list[int] = []
        self._texts: list[str] = []
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="embed")
        self._running: list[Future[None]] = []
        self._max_running = 2 * num_threads

    def add(self, text: str) -> int:
        """Has a passage embedded; returns the row that it will have."""
        row = self._free.pop() if self._free else self._num_rows
        self._num_rows = max(self._num_rows, row + 1)
        self._rows.append(row)
        self._texts.append(text)
        if len(self._rows) == BATCH_PASSAGES:
            self._submit()
        return row

    def flush(self) -> None:
        self._submit()
        self._wait(0)
        self._written(os.fsync, self._file)

    def finish(self, live_rows: Iterable[int]) -> None:
        """Clears the rows that no passage has any more, and closes the file."""
        self._wait(0)
        self._clear(live_rows)
        self._written(os.ftruncate, self._file, self._num_rows * self._width)
        self.flush()
        self.close()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _clear(self, live_rows: Iterable[int]) -> list[int]:
        """Fills all other rows with zeros; returns them, the first last."""
        free = sorted(set(range(self._num_rows)).difference(live_rows), reverse=True)
        for row in free:
            self._write(row, bytes(self._width))
        return free

    def _submit(self) -> None:
        if self._rows:
            self._wait(self._max_running - 1)
            self._running.append(self._pool.submit(self._embed, self._rows, self._texts))
            self._rows, self._texts = [], []

    def _wait(self, max_running: int) -> None:
        """Waits until no more batches than that run; raises what went wrong in one."""
        while len(self._running) > max_running:
            self._running.pop(0).result()

    def _embed(self, rows: list[int], texts: list[str]) -> None:
        steps = np.clip(np.rint(self._encoder.embed(texts) * SCALE), -127, 127).astype(np.int8)
        for row, values in zip(rows, steps, strict=True):
            self._write(row, values.tobytes())

    def _write(self, row: int, values: bytes) -> None:
        self._written(os.pwrite, self._file, values, row * self._width)

    def _written(self, write: Callable[..., object], *arguments: object) -> None:
        try:
            write(*arguments)
        except OSError as error:
            raise SetupError(f"cannot write {self._path}: {error.strerror}") from None
