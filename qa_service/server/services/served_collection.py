"""A collection that is served: the state of its index, and its fault.

LOADING ──opened──▶ READY ──its process died──▶ LOADING
   └──cannot be opened──▶ UNAVAILABLE ──opened──▶ READY
"""

from __future__ import annotations

from dataclasses import dataclass

from qa_service.net.timers import Timer
from qa_service.retrieval.messages import Open
from qa_service.server.services.options import CollectionOptions
from qa_service.server.services.searches import Searches
from qa_service.server.telemetry.health import CollectionState

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
"""A collection that cannot be opened is tried again after these times, each twice the last."""
FAULT_KEPT_S = 600.0
"""For so long a failed search is reported: damage may be where few questions lead."""


@dataclass(slots=True, eq=False)
class ServedCollection:
    """A collection, and the process that searches it.

    Attributes:
        edition: A number that changes when a search may find something else.
        identity: Of the index that is open; empty before the first.
        is_opening: Whether the process was asked to open it.
        was_tried: Whether it has been opened, or could not be, once.
        open_fault: Why its newest index could not be opened; empty if it could.
        embedding_fault: Why its embeddings are not used; empty if they are, or there are none.
        search_fault: Why a search failed last.
        faulty_until_s: Until when that is reported.
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
    embedding_fault: str = ""
    search_fault: str = ""
    faulty_until_s: float = 0.0
    needs_setup: bool = False
    retry_s: float = FIRST_RETRY_S
    retry: Timer | None = None

    @property
    def is_remote(self) -> bool:
        """Whether its searches wait for a network."""
        return bool(self.options.url)

    def opening(self, *, is_fresh: bool = False) -> Open:
        """What opens it."""
        path = str(self.options.path) if self.options.path else ""
        return Open(self.name, path, self.options.url, is_fresh)

    def note_search_fault(self, reason: str, now_s: float) -> bool:
        """Notes why a search failed; returns whether that is news."""
        is_news = reason != self.search_fault or now_s > self.faulty_until_s
        self.search_fault = reason
        self.faulty_until_s = now_s + FAULT_KEPT_S
        return is_news

    def fault(self, now_s: float) -> str:
        """What is wrong with it; empty if nothing is known to be."""
        if self.open_fault or now_s > self.faulty_until_s:
            return self.open_fault or self.embedding_fault
        return f"a search failed: {self.search_fault}"
