"""The one interface of everything between a connection and the instances.

After M. Eriksen, "Your Server as a Function" (PLOS 2013). A service around a service is a filter:
it may change, split, refuse or answer what passes.
"""

from __future__ import annotations

from typing import Protocol

from qa_service.server.scheduling.call import Call


class Service(Protocol):
    """Takes calls, and settles each of them once."""

    def submit(self, call: Call) -> None:
        """Takes a call, and settles it at once or later, unless it is cancelled before."""
