"""The one interface of everything between a connection and the instances, and the first of them.

After M. Eriksen, "Your Server as a Function" (PLOS 2013). A service around a service is a filter:
it may change, split, refuse or answer what passes.
"""

from __future__ import annotations

from typing import Protocol

from qa_service.errors import ShuttingDownError
from qa_service.server.scheduling.call import Call


class Service(Protocol):
    """Takes calls, and settles each of them once."""

    def submit(self, call: Call) -> None:
        """Takes a call, and settles it at once or later, unless it is cancelled before."""


class Gate:
    """The outermost service: refuses calls once it is closed, while the server drains."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.is_open = True

    def submit(self, call: Call) -> None:
        if self.is_open:
            self._service.submit(call)
        else:
            call.fail(ShuttingDownError())

    def close(self) -> None:
        self.is_open = False
