"""A service that refuses what comes after it was closed: the server is draining."""

from __future__ import annotations

from qa_service.errors import ShuttingDownError
from qa_service.scheduling.call import Call
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

    def submit(self, call: Call) -> None:
        """Passes a request on, or fails it."""
        if self.is_open:
            self._service.submit(call)
        else:
            call.fail(ShuttingDownError())

    def close(self) -> None:
        """Refuses requests from now on."""
        self.is_open = False
