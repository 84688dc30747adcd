"""The embeddings of an index's passages: a file of int8, a row each, and their search.

A passage's row is its field `row` in tantivy's index. Rows that no passage has are zeros, which no
question is near to; the next run fills them first. All rows are compared with a question: 100,000
of 384 values take 10 ms of an AVX2 core, as long as with a vector library's exact search.

An index with embeddings is searched by words and by them at once (`MergedSearch`):

    question ─▶ words ─────▶ the best by BM25 ──┐
             └▶ embedding ─▶ the best by cosine ┴▶ of each both ─▶ BM25_WEIGHT · BM25
                                                                 + COSINE_WEIGHT · cosine

The weights are the most likely ones on questions about other documents: they make the share of the
passages with the answer in the sum of `exp(score)` over all that are found as large as can be. They
are scaled so that a point of the merged score is worth as much as a point of BM25 is where there
are no embeddings.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from qa_service.errors import DamagedError, SetupError
from qa_service.retrieval.encoder import Encoder, FloatArray
from qa_service.retrieval.manifest import EMBEDDINGS_FILE
from qa_service.retrieval.search_messages import BM25_WEIGHT, COSINE_WEIGHT
from qa_service.retrieval.tantivy_index import Part, load_tantivy

if TYPE_CHECKING:
    import tantivy

SCALE = 320.0
"""A value of 1 is stored as this. Values of a vector of length 1 with hundreds of dimensions hardly
exceed 0.3; beyond 127 / 320 they are cut."""

BATCH_PASSAGES = 128
"""Are embedded by one thread at a time: enough to have batches of like lengths."""
_BLOCK_ROWS = 1024
"""Rows that are compared at a time: they fit into a core's cache as float32."""

IntArray = npt.NDArray[np.int64]
CALIBRATED_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The one whose cosines models know (`FoundPassage.cosine`): another's are on another scale."""

CANDIDATES = 100
"""How many passages each of the two searches finds: the answer's is hardly beyond."""

Hit = tuple[float, "tantivy.DocAddress"]
"""A score, and where the passage is."""


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
            self._rows: npt.NDArray[np.int8] = np.memmap(path, np.int8, "r", shape=shape)
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


class MergedHit(NamedTuple):
    """A passage that both searches have scored; as of `FoundPassage`."""

    score: float
    at: tantivy.DocAddress
    cosine: float | None


Words = Sequence[tuple["tantivy.Occur", "tantivy.Query"]]
"""The clauses of a query for any word of a question."""


class MergedSearch:
    """The search of an index that has embeddings; any number of threads may use it."""

    def __init__(
        self,
        searcher: tantivy.Searcher,
        schema: tantivy.Schema,
        embeddings: Embeddings,
        encoder: Encoder,
    ) -> None:
        self._searcher = searcher
        self._schema = schema
        self._embeddings = embeddings
        self._encoder = encoder
        self._is_calibrated = encoder.manifest.name == CALIBRATED_ENCODER

    def rows(self, query: tantivy.Query) -> IntArray:
        """The rows of the passages that a query finds."""
        hits = self._searcher.search(query, max(1, self._searcher.num_docs), count=False).hits
        return np.array(sorted(self._by_row(hits)), np.int64)

    def search(
        self, question: str, words: Words, count: int, part: Part | None = None
    ) -> list[MergedHit]:
        """The passages with the best merged scores, the best first; of a part of all if given."""
        number = max(CANDIDATES, count)
        query = load_tantivy().Query.boolean_query(words)
        if part:
            query = part.within(query)
        found = self._by_row(self._searcher.search(query, number, count=False).hits)
        cosines = self._embeddings.cosines(self._encoder.embed([question])[0])
        rows = part.rows if part else None
        nearest = {int(row) for row in best_rows(cosines, number, rows)} - found.keys()
        found |= self._by_row(self._search_among(nearest, words))
        merged = list[MergedHit]()
        for row, (score, at) in found.items():
            cosine = float(cosines[row])
            known = cosine if self._is_calibrated else None
            merged.append(MergedHit(BM25_WEIGHT * score + COSINE_WEIGHT * cosine, at, known))
        return heapq.nlargest(count, merged, key=lambda hit: hit.score)

    def _search_among(self, rows: set[int], words: Words) -> list[Hit]:
        """The passages that have these rows, with their BM25; 0 for those without a word."""
        if not rows:
            return []
        package = load_tantivy()
        those = package.Query.term_set_query(self._schema, "row", sorted(rows))
        must = (package.Occur.Must, package.Query.const_score_query(those, 0.0))
        query = package.Query.boolean_query([must, *words])
        hits: list[Hit] = self._searcher.search(query, len(rows), count=False).hits
        return hits

    def _by_row(self, hits: Sequence[Hit]) -> dict[int, Hit]:
        rows = self._searcher.fast_field_values("row", [at for _, at in hits])
        return {int(row or 0): hit for row, hit in zip(rows, hits, strict=True)}
