"""A collection that is served: how its index is opened, its state, and its fault.

LOADING ──opened──▶ READY ──its process died──▶ LOADING
   └──cannot be opened──▶ UNAVAILABLE ──opened──▶ READY

One that cannot be opened, or is searched worse than it could be, is opened again until it is well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import Timer
from qa_service.retrieval.search_messages import Open, Opened, Refused, Result
from qa_service.server.services.searches import Searches
from qa_service.server.services.service_options import CollectionOptions
from qa_service.server.telemetry.health import CollectionState
from qa_service.server.telemetry.services import CollectionCounts

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
"""A collection that cannot be opened is tried again after these times, each twice the last."""
FAULT_KEPT_S = 600.0
"""For so long a failed search is reported: damage may be where few questions lead."""
LOG_AGAIN_S = 10.0
"""How often a collection's failed searches are logged at most: a cluster may fail and recover with
each question."""


@dataclass(slots=True, eq=False)
class ServedCollection:
    """A collection, and the process that searches it.

    Attributes:
        editions: Numbers, each for one edition of all collections.
        edition: A number that changes when a search may find something else.
        identity: Of the index that is open; empty before the first.
        was_tried: Whether it has been opened, or could not be, once.
        open_fault: Why its newest index could not be opened; empty if it could.
        index_fault: Why its open index is searched worse than it could be: without embeddings, or
            by a cluster that does not answer.
        ends_with_success: Whether that is over when a search succeeds; else the next search may
            only have gone elsewhere in a damaged index.
        faulty_until_s: Until when that is reported.
        quiet_until_s: Until when no other failure of a search is logged.
        needs_setup: Whether it cannot be opened because of how the server is set up.
    """

    loop: EventLoop
    name: str
    options: CollectionOptions
    searches: Searches
    editions: Iterator[int]
    counts: CollectionCounts
    edition: int = 0
    state: CollectionState = "LOADING"
    identity: str = ""
    is_opening: bool = False
    was_tried: bool = False
    open_fault: str = ""
    index_fault: str = ""
    search_fault: str = ""
    ends_with_success: bool = False
    faulty_until_s: float = 0.0
    quiet_until_s: float = 0.0
    needs_setup: bool = False
    retry_s: float = FIRST_RETRY_S
    retry: Timer | None = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.edition = next(self.editions)

    @property
    def is_remote(self) -> bool:
        """Whether its searches wait for a network."""
        return bool(self.options.url)

    def open(self, *, is_fresh: bool = False) -> None:
        """Has its newest index opened; `is_fresh` even if that is open or being opened."""
        if self.is_closed or (self.is_opening and not is_fresh):
            return
        self.is_opening = True
        self._cancel_retry()
        work = Open(self.name, *self._place, is_fresh)
        self.searches.run(work, partial(self._on_opened, work))

    def close(self) -> None:
        self.is_closed = True
        self._cancel_retry()

    @property
    def _place(self) -> tuple[str, str]:
        return str(self.options.path or ""), self.options.url

    def _cancel_retry(self) -> None:
        if self.retry:
            self.retry.cancel()
            self.retry = None

    def _on_opened(self, work: Open, result: Result) -> None:
        self.is_opening, self.was_tried = False, True
        if self.is_closed:
            return
        if (work.path, work.url) != self._place:
            self.open()  # another folder was named meanwhile
        elif isinstance(result, Opened):
            self._use(result)
        elif isinstance(result, Refused):
            if result.reason != self.open_fault:
                what = "stays as it is" if result.is_open else "cannot be opened"
                logger.error("collection %s %s: %s", self.name, what, result.reason)
            self.open_fault, self.needs_setup = result.reason, result.kind == "setup"
            self.state = "READY" if result.is_open else "UNAVAILABLE"
            self._open_later()
        self.loop.mark()

    def _use(self, opened: Opened) -> None:
        is_new = opened.identity != self.identity
        if self.state == "UNAVAILABLE" or not self.identity:
            logger.info("collection %s is served", self.name)
        elif is_new:
            logger.info("collection %s: the new index is served", self.name)
        if is_new:
            self.edition = next(self.editions)
            self.faulty_until_s = 0.0
        self.identity, self.state = opened.identity, "READY"
        self.open_fault, self.needs_setup = "", False
        if opened.fault:
            if opened.fault not in (self.index_fault, self.search_fault):
                logger.error("collection %s: %s", self.name, opened.fault)
            self.index_fault = opened.fault
            self._open_later()
            return
        self.index_fault, self.retry_s = "", FIRST_RETRY_S
        if self.is_remote:
            self.note_success()

    def _open_later(self) -> None:
        self._cancel_retry()
        self.retry = self.loop.call_at(self.loop.now_s() + self.retry_s, self.open)
        self.retry_s = min(2 * self.retry_s, MAX_RETRY_S)

    def note_fault(self, reason: str, *, ends_with_success: bool = False) -> None:
        """Notes and counts that a search has failed; the fault may end with one that succeeds."""
        self.counts.failed_total += 1
        now_s = self.loop.now_s()
        is_known = reason == self.index_fault
        is_known |= reason == self.search_fault and now_s <= self.faulty_until_s
        self.search_fault, self.ends_with_success = reason, ends_with_success
        self.faulty_until_s = now_s + FAULT_KEPT_S
        if not is_known and now_s >= self.quiet_until_s:
            self.quiet_until_s = now_s + LOG_AGAIN_S
            logger.error("collection %s: a search failed: %s", self.name, reason)

    def note_success(self) -> None:
        if self.ends_with_success:
            self.search_fault, self.ends_with_success, self.faulty_until_s = "", False, 0.0
        if self.is_remote:
            self.index_fault = ""

    @property
    def fault(self) -> str:
        """What is wrong with it; empty if nothing is known to be."""
        if self.open_fault or self.loop.now_s() > self.faulty_until_s:
            return self.open_fault or self.index_fault
        return f"a search failed: {self.search_fault}"
