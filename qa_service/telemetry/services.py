"""The counts of cascades, of shadow traffic and of collections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from qa_service.telemetry.exposition import duration_samples
from qa_service.telemetry.metrics import DURATION_BOUNDS_MS, Histogram
from qa_service.wire.prometheus import Family, Sample

SHADOW_OUTCOMES = ("agreed", "differed", "failed", "unpaired", "dropped")
"""Outcomes of a request chosen to be copied: the version that answers found the same span, or
another; the copy failed; `unpaired`: there was no answer to compare with, or the client had
disconnected; `dropped`: no instance was idle, so there was no copy."""


@dataclass(slots=True)
class CascadeCounts:
    """The counts of a route's cascade.

    Attributes:
        models_asked: Requests answered, by how many models were asked.
        fallbacks: Requests answered by an unsure model because the next one failed.
    """

    models_asked: Counter[int] = field(default_factory=Counter)
    fallbacks: int = 0


@dataclass(slots=True)
class ShadowCounts:
    """The counts of a version that receives copies of requests."""

    seen: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHADOW_OUTCOMES, 0))
    request_ms: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_MS))

    @property
    def copied(self) -> int:
        """Copies with an outcome."""
        return sum(self.outcomes.values()) - self.outcomes["dropped"]

    def report(self) -> dict[str, object]:
        """The counts, the share that was copied, and the agreement."""
        compared = self.outcomes["agreed"] + self.outcomes["differed"]
        return {
            "seen": self.seen,
            **self.outcomes,
            "share": round(self.copied / self.seen, 4) if self.seen else None,
            "agreement": round(self.outcomes["agreed"] / compared, 4) if compared else None,
            "request_ms": self.request_ms.report(),
        }


@dataclass(slots=True)
class CollectionCounts:
    """What was searched for in a collection.

    Attributes:
        search_ms: Milliseconds that searches took.
        passages_total: Passages that they found and that were read.
    """

    search_ms: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_MS))
    passages_total: int = 0

    def report(self) -> dict[str, object]:
        """The counts."""
        return {"search_ms": self.search_ms.report(), "passages_total": self.passages_total}


class ServiceCounts:
    """The counts of all cascades, of all shadow traffic and of all collections."""

    def __init__(self) -> None:
        self.cascades: dict[str, CascadeCounts] = {}
        self.shadows: dict[tuple[str, int], ShadowCounts] = {}
        self.collections: dict[str, CollectionCounts] = {}

    def cascade(self, route: str) -> CascadeCounts:
        """The counts of a route, from its first request on."""
        return self.cascades.setdefault(route, CascadeCounts())

    def shadow(self, model: str, version: int) -> ShadowCounts:
        """The counts of a version that receives copies, from the first on."""
        return self.shadows.setdefault((model, version), ShadowCounts())

    def collection(self, name: str) -> CollectionCounts:
        """The counts of a collection."""
        return self.collections.setdefault(name, CollectionCounts())

    def report(self) -> dict[str, object]:
        """Their part of the reply to a `stats` query."""
        return {
            "cascades": {
                route: {"models_asked": counts.models_asked, "fallbacks": counts.fallbacks}
                for route, counts in self.cascades.items()
            },
            "shadows": [
                {"model": model, "version": version, **counts.report()}
                for (model, version), counts in self.shadows.items()
            ],
            "collections": {name: counts.report() for name, counts in self.collections.items()},
        }

    def families(self) -> Iterator[Family]:
        """The metrics; none without a cascade or shadow traffic."""
        if self.cascades:
            yield from self._cascade_families()
        if self.shadows:
            yield from self._shadow_families()
        if self.collections:
            yield from self._collection_families()

    def _cascade_families(self) -> Iterator[Family]:
        asked = [
            Sample(count, {"route": route, "models_asked": str(number)})
            for route, counts in self.cascades.items()
            for number, count in sorted(counts.models_asked.items())
        ]
        text = "Requests that a cascade has answered, by how many models it asked."
        yield Family("qa_cascade_requests_total", "counter", text, asked)
        fallbacks = [
            Sample(counts.fallbacks, {"route": route}) for route, counts in self.cascades.items()
        ]
        text = "Requests answered by a model that was not sure, as the next one failed."
        yield Family("qa_cascade_fallbacks_total", "counter", text, fallbacks)

    def _shadow_families(self) -> Iterator[Family]:
        shadows = [
            (counts, {"model": model, "version": str(version)})
            for (model, version), counts in self.shadows.items()
        ]
        text = "Requests that could have been copied to a version."
        seen = [Sample(counts.seen, labels) for counts, labels in shadows]
        yield Family("qa_shadow_seen_total", "counter", text, seen)
        outcomes = [
            Sample(count, {**labels, "outcome": outcome})
            for counts, labels in shadows
            for outcome, count in counts.outcomes.items()
        ]
        text = "Requests chosen to be copied to a version, by what came of it."
        yield Family("qa_shadow_requests_total", "counter", text, outcomes)
        durations = [
            sample
            for counts, labels in shadows
            for sample in duration_samples(counts.request_ms, labels)
        ]
        text = "Time from a copy to its answer."
        yield Family("qa_shadow_request_seconds", "histogram", text, durations)

    def _collection_families(self) -> Iterator[Family]:
        durations = [
            sample
            for name, counts in self.collections.items()
            for sample in duration_samples(counts.search_ms, {"collection": name})
        ]
        text = "Time of a search in a collection."
        yield Family("qa_collection_search_seconds", "histogram", text, durations)
        passages = [
            Sample(counts.passages_total, {"collection": name})
            for name, counts in self.collections.items()
        ]
        text = "Passages of a collection that were found and read."
        yield Family("qa_collection_passages_total", "counter", text, passages)
