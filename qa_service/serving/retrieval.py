"""The collections that are served, and the search in them, which does not hold up the loop.

A search that takes less than `MAX_LOOP_SEARCH_MS` runs in the loop, as a thread would take as long
to hand it over. What the last ones took decides; the first after a collection was opened goes to a
thread, as its files may not be in memory yet. So does each that waits for a network.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from qa_service.collections.collection import Collection
from qa_service.collections.open_search import OpenSearchIndex
from qa_service.collections.retriever import FoundPassage, Retriever
from qa_service.errors import (
    InternalError,
    QaError,
    QueueFullError,
    SetupError,
    UnknownCollectionError,
    there_are,
)
from qa_service.net.background import Done, Work
from qa_service.net.timers import Clock
from qa_service.scheduling.call import Call
from qa_service.serving.options import NAME, CollectionOptions
from qa_service.telemetry.services import CollectionCounts, ServiceCounts
from qa_service.wire.messages import Request

logger = logging.getLogger(__name__)

MAX_LOOP_SEARCH_MS = 1.0
MAX_ASIDE = 256
"""How many searches may wait for the thread."""
SMOOTHING = 1 / 8

Opener = Callable[[CollectionOptions], Retriever]
Found = Callable[[Sequence[FoundPassage] | QaError], None]


def _open(options: CollectionOptions) -> Retriever:
    if bool(options.path) == bool(options.url):
        raise SetupError("needs either path or url")
    return Collection(options.path) if options.path else OpenSearchIndex(options.url)


class Aside(Protocol):
    """Runs work beside the loop."""

    def run(self, work: Work, done: Done) -> None:
        """Has work done, and calls `done` from the loop with its result or its exception."""


class _Searched(msgspec.Struct, frozen=True):
    found: list[FoundPassage]
    took_ms: float


class ServedCollection:
    """A collection that is open.

    Attributes:
        name: Its name.
        options: What the configuration says of it.
        retriever: What searches it.
        edition: Another number whenever what is found may be another.
        search_ms: What a search takes, smoothed; infinity before the first.
        fault: Why what was indexed since could not be opened; empty if it could.
    """

    def __init__(
        self, name: str, options: CollectionOptions, retriever: Retriever, edition: int
    ) -> None:
        self.name = name
        self.options = options
        self.retriever = retriever
        self.edition = edition
        self.search_ms = float("inf")
        self.fault = ""

    @property
    def place(self) -> tuple[Path | None, str]:
        """Where it is."""
        return self.options.path, self.options.url


class Retrieval:
    """The collections, by name.

    Args:
        clock: The loop's.
        aside: Runs searches beside the loop.
        counts: Where searches are counted.
        open_collection: Opens what the configuration names.
    """

    def __init__(
        self,
        clock: Clock,
        aside: Aside,
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
        """Serves these from now on; takes up what has been indexed of those that are open.

        Raises:
            SetupError: One cannot be opened; nothing is changed.
        """
        served = {}
        for name, its in options.items():
            known = self._served.get(name)
            if known and known.place == (its.path, its.url):
                known.options = its
                served[name] = known
            else:
                served[name] = self._opened(name, its)
        for name, collection in served.items():
            self._counts.collection(name)
            if collection is self._served.get(name):
                self._refresh(collection)
            else:
                logger.info("collection %s is served", name)
        self._served = served

    def find(self, name: str) -> ServedCollection:
        """The collection of that name.

        Raises:
            UnknownCollectionError: There is none.
        """
        if found := self._served.get(name):
            return found
        raise UnknownCollectionError(f"there is no collection {name}; {there_are(self._served)}")

    def edition(self, request: Request) -> str:
        """What a request's answers depend on beside question and text, for the cache."""
        served = self._served.get(request.collection) if request.collection else None
        if served is None:
            return f"{request.skim or ''}"
        return f"{served.edition}/{request.max_passages or served.options.max_passages}"

    def search(self, call: Call, on_found: Found) -> None:
        """Searches the collection that a request names, and calls back, at once or later.

        Raises:
            UnknownCollectionError: There is none of that name.
            QueueFullError: Too many searches wait.
        """
        served = self.find(call.request.collection or "")
        max_passages = call.request.max_passages or served.options.max_passages
        work = partial(self._search, served.retriever, call, max_passages)
        done = partial(self._on_searched, served, on_found)
        if served.search_ms <= MAX_LOOP_SEARCH_MS and not served.options.url:
            done(_result_of(work))
            return
        self.run_aside(work, done)

    def run_aside(self, work: Work, done: Done) -> None:
        """Runs work beside the loop.

        Raises:
            QueueFullError: Too much waits already.
        """
        if self._num_aside == MAX_ASIDE:
            raise QueueFullError
        self._num_aside += 1
        self._aside.run(work, partial(self._on_done_aside, done))

    def _opened(self, name: str, options: CollectionOptions) -> ServedCollection:
        if not re.match(NAME, name):
            raise SetupError(f"[collections.{name}]: a name has letters, digits, _, . and -")
        try:
            retriever = self._open(options)
        except SetupError as error:
            raise SetupError(f"[collections.{name}]: {error}") from None
        return ServedCollection(name, options, retriever, next(self._editions))

    def _refresh(self, served: ServedCollection) -> None:
        try:
            if served.retriever.refresh():
                served.edition, served.search_ms = next(self._editions), float("inf")
                logger.info("collection %s: what has been indexed since is served", served.name)
            served.fault = ""
        except SetupError as error:
            if str(error) != served.fault:
                logger.error("collection %s stays as it is: %s", served.name, error)
            served.fault = str(error)

    def _search(self, retriever: Retriever, call: Call, max_passages: int) -> _Searched:
        """Searches, in whichever thread; nothing for a call that nobody waits for any more."""
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
            _count(self._counts.collection(served.name), served, result)
            on_found(result.found)
        elif isinstance(result, QaError):
            on_found(result)
        else:
            logger.error("collection %s: a search failed: %r", served.name, result)
            on_found(InternalError())


def _count(counts: CollectionCounts, served: ServedCollection, result: _Searched) -> None:
    counts.search_ms.observe(result.took_ms)
    counts.passages_total += len(result.found)
    if served.search_ms == float("inf"):
        served.search_ms = result.took_ms
    else:
        served.search_ms += SMOOTHING * (result.took_ms - served.search_ms)


def _result_of(work: Work) -> object:
    try:
        return work()
    except Exception as error:
        return error
