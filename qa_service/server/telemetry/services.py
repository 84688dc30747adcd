"""The counts of cascades, of shadow traffic and of collections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from qa_service.server.telemetry.exposition import duration_samples
from qa_service.server.telemetry.metrics import DURATION_BOUNDS_MS
from qa_service.wire.histogram import Histogram
from qa_service.wire.http.prometheus import Family, Labels, Sample

SHADOW_OUTCOMES = ("agreed", "differed", "failed", "unpaired", "dropped")
"""Outcomes of a request chosen to be copied: the version that answers found the same span, or
another; the copy failed; `unpaired`: there was no answer to compare with, or the client had
disconnected; `dropped`: no instance was idle, so there was no copy."""


class CascadeCounts(msgspec.Struct):
    """The counts of a route's cascade.

    Attributes:
        fallbacks: Requests answered by an unsure model because the next one failed.
    """

    models_asked: Counter[int] = msgspec.field(default_factory=Counter)
    fallbacks: int = 0


class ShadowCounts(msgspec.Struct):
    """The counts of a version that receives copies of requests."""

    seen: int = 0
    outcomes: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(SHADOW_OUTCOMES, 0)
    )
    request_ms: Histogram = msgspec.field(default_factory=lambda: Histogram(DURATION_BOUNDS_MS))

    @property
    def copied(self) -> int:
        return sum(self.outcomes.values()) - self.outcomes["dropped"]

    def report(self) -> dict[str, object]:
        compared = self.outcomes["agreed"] + self.outcomes["differed"]
        return {
            "seen": self.seen,
            **self.outcomes,
            "share": round(self.copied / self.seen, 4) if self.seen else None,
            "agreement": round(self.outcomes["agreed"] / compared, 4) if compared else None,
            "request_ms": self.request_ms.report(),
        }


class CollectionCounts(msgspec.Struct):
    """The counts of a collection: its searches, and the passages found by them that were read.

    Attributes:
        failed_total: Searches that a damaged index or a cluster failed, or that ended or held their
            process.
        left_out_total: Documents that a cluster's search found and that are no passages.
    """

    search_ms: Histogram = msgspec.field(default_factory=lambda: Histogram(DURATION_BOUNDS_MS))
    passages_total: int = 0
    failed_total: int = 0
    left_out_total: int = 0

    def report(self) -> dict[str, object]:
        totals = {name: getattr(self, name) for name, *_ in _COLLECTION_TOTALS}
        return {"search_ms": self.search_ms.report(), **totals}


_COLLECTION_TOTALS = (
    ("passages_total", "passages", "Passages of a collection that were found and read."),
    ("failed_total", "failed_searches",
     "Searches that a damaged or hanging index, or a cluster, has failed."),
    ("left_out_total", "left_out_documents",
     "Documents that a cluster's search found and that are no passages."),
)  # fmt: skip
"""Each count, what its metric is called, and its text."""


class ServiceCounts:
    """The counts of all cascades, shadow traffic and collections; each from its first request."""

    def __init__(self) -> None:
        self.cascades: dict[str, CascadeCounts] = {}
        self.shadows: dict[tuple[str, int], ShadowCounts] = {}
        self.collections: dict[str, CollectionCounts] = {}
        self.search_process_deaths_total = 0

    def cascade(self, route: str) -> CascadeCounts:
        return self.cascades.setdefault(route, CascadeCounts())

    def shadow(self, model: str, version: int) -> ShadowCounts:
        return self.shadows.setdefault((model, version), ShadowCounts())

    def keep_collections(self, names: Iterable[str]) -> None:
        """Counts these collections from now on; what others counted is forgotten."""
        self.collections = {name: self.collections.get(name, CollectionCounts()) for name in names}

    def report(self, states: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, object]:
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
            "collections": {
                name: {"state": state, "fault": faults.get(name), **self.collections[name].report()}
                for name, state in states.items()
            },
            "search_process_deaths_total": self.search_process_deaths_total,
        }

    def families(self, states: Mapping[str, str]) -> Iterator[Family]:
        """The metrics; none of what there is not."""
        if self.cascades:
            yield from self._cascade_families()
        if self.shadows:
            yield from self._shadow_families()
        if states:
            yield from self._collection_families(states)
        if states or self.search_process_deaths_total:
            deaths = [Sample(self.search_process_deaths_total, {})]
            yield _counter("search_process_deaths", "Deaths of search processes.", deaths)

    def _cascade_families(self) -> Iterator[Family]:
        cascades = [(counts, {"route": route}) for route, counts in self.cascades.items()]
        text = "Requests that a cascade has answered, by how many models it asked."
        asked = [
            Sample(count, {**labels, "models_asked": str(number)})
            for counts, labels in cascades
            for number, count in sorted(counts.models_asked.items())
        ]
        yield _counter("cascade_requests", text, asked)
        text = "Requests answered by a model that was not sure, as the next one failed."
        fallbacks = [Sample(counts.fallbacks, labels) for counts, labels in cascades]
        yield _counter("cascade_fallbacks", text, fallbacks)

    def _shadow_families(self) -> Iterator[Family]:
        shadows = [
            (counts, {"model": model, "version": str(version)})
            for (model, version), counts in self.shadows.items()
        ]
        seen = [Sample(counts.seen, labels) for counts, labels in shadows]
        yield _counter("shadow_seen", "Requests that could have been copied to a version.", seen)
        outcomes = [
            Sample(count, {**labels, "outcome": outcome})
            for counts, labels in shadows
            for outcome, count in counts.outcomes.items()
        ]
        text = "Requests chosen to be copied to a version, by outcome."
        yield _counter("shadow_requests", text, outcomes)
        durations = [(counts.request_ms, labels) for counts, labels in shadows]
        yield _durations("qa_shadow_request_seconds", "Time from a copy to its answer.", durations)

    def _collection_families(self, states: Mapping[str, str]) -> Iterator[Family]:
        collections = [(self.collections[name], {"collection": name}) for name in states]
        text = "Time of a search in a collection."
        durations = [(counts.search_ms, labels) for counts, labels in collections]
        yield _durations("qa_collection_search_seconds", text, durations)
        for name, called, text in _COLLECTION_TOTALS:
            samples = [Sample(getattr(counts, name), labels) for counts, labels in collections]
            yield _counter(f"collection_{called}", text, samples)
        ready = [Sample(float(state == "READY"), {"collection": n}) for n, state in states.items()]
        yield Family("qa_collection_ready", "gauge", "1 if a collection can be searched, else 0.",
                     ready)  # fmt: skip


def _counter(name: str, text: str, samples: Sequence[Sample]) -> Family:
    return Family(f"qa_{name}_total", "counter", text, samples)


def _durations(name: str, text: str, found: Iterable[tuple[Histogram, Labels]]) -> Family:
    samples = [
        sample for histogram, labels in found for sample in duration_samples(histogram, labels)
    ]
    return Family(name, "histogram", text, samples)
