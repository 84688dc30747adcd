"""Searches in collections, in separate processes.

Each client has its share of each process, however much it asks at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from qa_service.errors import QaError, UnavailableError
from qa_service.net.timers import Clock
from qa_service.retrieval.messages import Found, Refused, Result, Search
from qa_service.retrieval.retriever import FoundPassage
from qa_service.server.scheduling.call import Call
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.options import CollectionOptions, SearchOptions
from qa_service.server.services.searches import Process, Searches
from qa_service.server.services.served_collection import ServedCollection
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import MAX_PASSAGES, Request

SHORT_PASSAGE_CHARS = 500
"""Where a question does not say how many passages are read, up to twice as many as usual are, while
they have no more characters than this on average: rows of a table are short and much alike."""

MakeProcess = Callable[[str, int, Searches], Process]
"""Makes the process of searches, by what is searched and how many at a time."""
OnFound = Callable[[Sequence[FoundPassage] | QaError], None]


class Retrieval:
    """Searches for calls.

    Args:
        max_waiting: Requests that may wait for each search process.

    Attributes:
        collections: Those that are served.
    """

    def __init__(
        self,
        clock: Clock,
        make_process: MakeProcess,
        counts: ServiceCounts,
        options: SearchOptions,
        max_waiting: int,
    ) -> None:
        self._clock = clock
        self._make_process = make_process
        self._counts = counts
        self._options = options
        self._max_waiting = max_waiting
        self.collections = CollectionSet(
            clock, self._make_searches, counts, options.max_search_processes
        )

    def use(self, named: Mapping[str, CollectionOptions], folder: Path | None = None) -> None:
        """Serves these collections and those of a folder; looks for newer indexes of all.

        Raises:
            SetupError: What is said of a collection is wrong; nothing is changed.
        """
        self.collections.use(named, folder)

    @property
    def has_started(self) -> bool:
        """Whether each collection has been opened, or could not be."""
        return self.collections.has_started

    def edition(self, request: Request) -> str:
        """What the answers depend on besides question and text: a part of the cache's key."""
        served = self.collections.get(request.collection)
        if served is None:
            return ""
        max_passages = request.max_passages or f"{served.options.max_passages}+"
        return f"{served.edition}/{max_passages}/{request.passages}"

    def search(self, call: Call, on_found: OnFound) -> None:
        """Searches the collection that a request names; `on_found` is called later.

        Raises:
            UnknownCollectionError: No collection has this name.
            QueueFullError: As many searches wait as may.
            UnavailableError: The collection cannot be searched now.
        """
        served = self.collections.find(call.request.collection or "")
        if served.state == "UNAVAILABLE":
            raise _unavailable(served)
        wanted = call.request.max_passages
        usual = served.options.max_passages
        work = Search(served.name, call.request.question, wanted or min(2 * usual, MAX_PASSAGES))
        on_result = partial(self._on_searched, served, on_found, wanted or usual)
        served.searches.submit(call, work, on_result)

    def kill(self) -> None:
        """Ends the processes: nothing is searched any more."""
        for searches in self.collections.processes():
            searches.kill()

    def reap(self) -> bool:
        """Whether all processes have ended."""
        ended = [searches.reap() for searches in self.collections.processes()]
        return all(ended)

    def _make_searches(self, name: str, concurrency: int) -> Searches:
        return Searches(
            self._clock,
            partial(self._make_process, name, concurrency),
            self.collections,
            concurrency=concurrency,
            max_waiting=self._max_waiting,
            timeout_s=self._options.search_timeout_s,
        )

    def _on_searched(
        self, served: ServedCollection, on_found: OnFound, usual: int, result: Result
    ) -> None:
        if isinstance(result, Found):
            passages = _to_be_read(result.passages, usual)
            served.note_success()
            if counts := self._counts.collections.get(served.name):
                counts.search_ms.observe(result.took_ms)
                counts.passages_total += len(passages)
                counts.left_out_total += result.left_out
            on_found(passages)
        elif isinstance(result, Refused):
            if result.kind == "unavailable":
                self.collections.note_unavailable(served, result.reason)
            elif served.state != "UNAVAILABLE":  # else it waited while it could not be opened
                self.collections.note_damage(served, result.reason)
            on_found(_unavailable(served))


def _to_be_read(found: Sequence[FoundPassage], usual: int) -> Sequence[FoundPassage]:
    """The first passages, as many as are usual, and further ones as long as all are short."""
    chars = itertools.accumulate(len(its.passage.text) for its in found)
    fitting = sum(total <= usual * SHORT_PASSAGE_CHARS for total in chars)
    return found[: max(usual, fitting)]


def _unavailable(served: ServedCollection) -> UnavailableError:
    return UnavailableError(f"the collection {served.name} cannot be searched now")
