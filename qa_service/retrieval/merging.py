"""Searches an index by words and by embeddings at once.

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
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qa_service.retrieval.embeddings import Embeddings, IntArray, best_rows
from qa_service.retrieval.encoder import Encoder
from qa_service.retrieval.retriever import BM25_WEIGHT, COSINE_WEIGHT
from qa_service.retrieval.tantivy_index import load_tantivy

if TYPE_CHECKING:
    import tantivy

CALIBRATED_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The one whose cosines models know (`FoundPassage.cosine`): another's are on another scale."""

CANDIDATES = 100
"""How many passages each of the two searches finds: the answer's is hardly beyond."""

Hit = tuple[float, "tantivy.DocAddress"]
"""A score, and where the passage is."""


class MergedHit(NamedTuple):
    """A passage that both searches have scored."""

    score: float
    at: tantivy.DocAddress
    cosine: float


class Part(NamedTuple):
    """The passages that a filter is for.

    Attributes:
        clauses: Of a query, each of which they match; they score nothing.
        rows: Of their embeddings.
    """

    clauses: Sequence[tuple[tantivy.Occur, tantivy.Query]]
    rows: IntArray

    def within(self, query: tantivy.Query) -> tantivy.Query:
        """What a query finds of them."""
        package = load_tantivy()
        both: tantivy.Query = package.Query.boolean_query(
            [(package.Occur.Must, query), *self.clauses]
        )
        return both


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

    @property
    def is_calibrated(self) -> bool:
        """Whether its cosines mean to a model what they were in its calibration."""
        return self._encoder.manifest.name == CALIBRATED_ENCODER

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
        merged = (
            MergedHit(BM25_WEIGHT * score + COSINE_WEIGHT * cosine, at, cosine)
            for (score, at), cosine in zip(
                found.values(), cosines[list(found)].tolist(), strict=True
            )
        )
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
