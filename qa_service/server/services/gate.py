"""A service that refuses calls once it is closed, while the server drains."""

from __future__ import annotations

from qa_service.errors import ShuttingDownError
from qa_service.server.scheduling.call import Call
from qa_service.server.services.service import Service


class Gate:
    """Passes requests on until it is closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.is_open = True

    def submit(self, call: Call) -> None:
        """Passes a call on, or fails it."""
        if self.is_open:
            self._service.submit(call)
        else:
            call.fail(ShuttingDownError())

    def close(self) -> None:
        """Refuses calls from now on."""
        self.is_open = False
