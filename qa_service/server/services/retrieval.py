"""The collections that are served, and searches in them that do not hold up the loop.

A search runs in the loop if the collection's last searches took at most `MAX_LOOP_SEARCH_MS`, else
in a thread. The first search after a collection was opened runs in a thread, as its files may not
be in memory yet; so does every search that waits for a network.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.errors import (
    InternalError,
    QaError,
    QueueFullError,
    SetupError,
    UnknownCollectionError,
    there_are,
    told_in,
)
from qa_service.net.background import Background, Done, Work, result_of
from qa_service.net.timers import Clock
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.open_search import OpenSearchIndex
from qa_service.retrieval.retriever import FoundPassage, Retriever
from qa_service.server.scheduling.call import Call
from qa_service.server.services.options import CollectionOptions, check_name
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import Request

logger = logging.getLogger(__name__)

MAX_LOOP_SEARCH_MS = 1.0
"""To hand a search to a thread and back takes about as long."""

MAX_ASIDE = 256
"""How many searches may wait for a thread; each holds its question in memory."""

SMOOTHING = 1 / 8
"""The weight of the latest search in `search_ms`, an average over some eight searches."""

Opener = Callable[[CollectionOptions], Retriever]
Found = Callable[[Sequence[FoundPassage] | QaError], None]


def _open(options: CollectionOptions) -> Retriever:
    if bool(options.path) == bool(options.url):
        raise SetupError("needs either path or url")
    return Collection(options.path) if options.path else OpenSearchIndex(options.url)


class _Searched(msgspec.Struct, frozen=True):
    found: list[FoundPassage]
    took_ms: float


@dataclass(slots=True, eq=False)
class ServedCollection:
    """A collection that is open.

    Attributes:
        edition: A number that changes when a search may find something else.
        search_ms: How long a search takes, smoothed; infinite before the first.
        fault: Why the newest index could not be opened; empty if it could.
    """

    name: str
    options: CollectionOptions
    retriever: Retriever
    edition: int
    search_ms: float = math.inf
    fault: str = ""

    def is_at(self, options: CollectionOptions) -> bool:
        """Whether it is what these options would open."""
        return (self.options.path, self.options.url) == (options.path, options.url)


class Retrieval:
    """The collections by name, and their searches."""

    def __init__(
        self,
        clock: Clock,
        aside: Background,
        counts: ServiceCounts,
        open_collection: Opener = _open,
    ) -> None:
        self._clock = clock
        self._aside = aside
        self._open = open_collection
        self._counts = counts
        self._served: dict[str, ServedCollection] = {}
        self._editions = itertools.count(1)
        self._num_aside = 0

    def use(self, options: Mapping[str, CollectionOptions]) -> None:
        """Serves these collections from now on; opens the newest index of those that are open.

        Raises:
            SetupError: A new one cannot be opened; nothing is changed.
        """
        served = {}
        for name, its in options.items():
            known = self._served.get(name)
            if known and known.is_at(its):
                known.options = its
                served[name] = known
            else:
                served[name] = self._opened(name, its)
        self._counts.keep_collections(served)
        for name, collection in served.items():
            if collection is self._served.get(name):
                self._refresh(collection)
            else:
                logger.info("collection %s is served", name)
        self._served = served

    def find(self, name: str) -> ServedCollection:
        """The collection of that name.

        Raises:
            UnknownCollectionError: No collection has this name.
        """
        if found := self._served.get(name):
            return found
        raise UnknownCollectionError(f"there is no collection {name}; {there_are(self._served)}")

    def edition(self, request: Request) -> str:
        """What the answers depend on beside question and text: a part of the cache's key."""
        served = self._served.get(request.collection) if request.collection else None
        if served is None:
            return f"{request.skim or ''}"
        return f"{served.edition}/{request.max_passages or served.options.max_passages}"

    def search(self, call: Call, on_found: Found) -> None:
        """Searches the collection that a request names; calls `on_found` at once or later.

        Raises:
            UnknownCollectionError: No collection has this name.
            QueueFullError: `MAX_ASIDE` searches are waiting.
        """
        served = self.find(call.request.collection or "")
        max_passages = call.request.max_passages or served.options.max_passages
        work = partial(self._search, served.retriever, call, max_passages)
        done = partial(self._on_searched, served, on_found)
        if served.search_ms <= MAX_LOOP_SEARCH_MS and not served.options.url:
            done(result_of(work))
            return
        self.run_aside(work, done)

    def run_aside(self, work: Work, done: Done) -> None:
        """Runs work in a thread, then `done` in the loop.

        Raises:
            QueueFullError: `MAX_ASIDE` pieces of work are waiting.
        """
        if self._num_aside == MAX_ASIDE:
            raise QueueFullError
        self._num_aside += 1
        self._aside.run(work, partial(self._on_done_aside, done))

    def _opened(self, name: str, options: CollectionOptions) -> ServedCollection:
        with told_in(f"[collections.{name}]"):
            check_name(name)
            return ServedCollection(name, options, self._open(options), next(self._editions))

    def _refresh(self, served: ServedCollection) -> None:
        try:
            if served.retriever.refresh():
                served.edition, served.search_ms = next(self._editions), math.inf
                logger.info("collection %s: what has been indexed since is served", served.name)
            served.fault = ""
        except SetupError as error:
            if str(error) != served.fault:
                logger.error("collection %s stays as it is: %s", served.name, error)
            served.fault = str(error)

    def _search(self, retriever: Retriever, call: Call, max_passages: int) -> _Searched:
        """Searches, in any thread; finds nothing for a call that has ended."""
        if call.is_settled:
            return _Searched([], 0.0)
        start_s = self._clock.now_s()
        found = retriever.search(call.request.question, max_passages)
        return _Searched(found, (self._clock.now_s() - start_s) * 1e3)

    def _on_done_aside(self, done: Done, result: object) -> None:
        self._num_aside -= 1
        done(result)

    def _on_searched(self, served: ServedCollection, on_found: Found, result: object) -> None:
        if isinstance(result, _Searched):
            self._count(served, result)
            on_found(result.found)
        elif isinstance(result, QaError):
            on_found(result)
        else:
            logger.error("collection %s: a search failed: %r", served.name, result)
            on_found(InternalError())

    def _count(self, served: ServedCollection, result: _Searched) -> None:
        if counts := self._counts.collections.get(served.name):
            counts.search_ms.observe(result.took_ms)
            counts.passages_total += len(result.found)
        if served.search_ms == math.inf:
            served.search_ms = result.took_ms
        else:
            served.search_ms += SMOOTHING * (result.took_ms - served.search_ms)
