"""The one interface of everything that stands between a connection and the workers.

After M. Eriksen, "Your Server as a Function" (PLOS 2013). A service around a service is a filter:
it may change, split, refuse or answer what passes.
"""

from __future__ import annotations

from typing import Protocol

from qa_service.scheduling.pending import PendingRequest


class Service(Protocol):
    """Takes requests, and settles each of them once."""

    def submit(self, pending: PendingRequest) -> None:
        """Takes a request; it will be resolved or failed, at once or later."""

    def cancel(self, pending: PendingRequest) -> None:
        """Drops a request that nobody waits for any more; it has been abandoned or failed."""
