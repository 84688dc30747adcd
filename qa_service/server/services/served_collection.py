"""A collection that is served: the state of its index, and its fault.

LOADING ──opened──▶ READY ──its process died──▶ LOADING
   └──cannot be opened──▶ UNAVAILABLE ──opened──▶ READY
"""

from __future__ import annotations

from dataclasses import dataclass

from qa_service.net.timers import Timer
from qa_service.retrieval.search_messages import Open
from qa_service.server.services.searches import Searches
from qa_service.server.services.service_options import CollectionOptions
from qa_service.server.telemetry.health import CollectionState

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
        edition: A number that changes when a search may find something else.
        identity: Of the index that is open; empty before the first.
        is_opening: Whether the process was asked to open it.
        was_tried: Whether it has been opened, or could not be, once.
        open_fault: Why its newest index could not be opened; empty if it could.
        index_fault: Why its open index is searched worse than it could be: without embeddings, or
            by a cluster that does not answer.
        search_fault: Why a search failed last.
        ends_with_success: Whether that is over when a search succeeds; else the next search may
            only have gone elsewhere in a damaged index.
        faulty_until_s: Until when that is reported.
        quiet_until_s: Until when no other failure of a search is logged.
        needs_setup: Whether it cannot be opened because of how the server is set up.
    """

    name: str
    options: CollectionOptions
    searches: Searches
    edition: int
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

    @property
    def is_remote(self) -> bool:
        """Whether its searches wait for a network."""
        return bool(self.options.url)

    def opening(self, *, is_fresh: bool = False) -> Open:
        path = str(self.options.path) if self.options.path else ""
        return Open(self.name, path, self.options.url, is_fresh)

    def note_search_fault(self, reason: str, now_s: float, *, ends_with_success: bool) -> bool:
        """Notes why a search failed; returns whether that is to be logged."""
        is_known = reason == self.index_fault
        is_known |= reason == self.search_fault and now_s <= self.faulty_until_s
        self.search_fault, self.ends_with_success = reason, ends_with_success
        self.faulty_until_s = now_s + FAULT_KEPT_S
        if is_known or now_s < self.quiet_until_s:
            return False
        self.quiet_until_s = now_s + LOG_AGAIN_S
        return True

    def note_success(self) -> None:
        """Notes that a search has succeeded, by which some faults are over."""
        if self.ends_with_success:
            self.search_fault, self.ends_with_success, self.faulty_until_s = "", False, 0.0
        if self.is_remote:
            self.index_fault = ""

    def fault(self, now_s: float) -> str:
        """What is wrong with it; empty if nothing is known to be."""
        if self.open_fault or now_s > self.faulty_until_s:
            return self.open_fault or self.index_fault
        return f"a search failed: {self.search_fault}"
