"""A service that refuses what comes after it was closed: the server is draining."""

from __future__ import annotations

from qa_service.errors import ShuttingDownError
from qa_service.scheduling.pending import PendingRequest
from qa_service.serving.service import Service


class Gate:
    """Passes requests on until it is closed.

    Args:
        service: Where they go.

    Attributes:
        is_open: Whether it passes requests on.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.is_open = True

    def submit(self, pending: PendingRequest) -> None:
        """Passes a request on, or fails it."""
        if self.is_open:
            self._service.submit(pending)
        else:
            pending.fail(ShuttingDownError())

    def cancel(self, pending: PendingRequest) -> None:
        """Passes a cancellation on."""
        self._service.cancel(pending)

    def close(self) -> None:
        """Refuses requests from now on."""
        self.is_open = False
