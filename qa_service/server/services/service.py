"""The one interface of everything between a connection and the instances, and the first two.

After M. Eriksen, "Your Server as a Function" (PLOS 2013). A service around a service is a filter:
it may change, split, refuse or answer what passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from qa_service.errors import QaError, ShuttingDownError
from qa_service.server.scheduling.call import Call

if TYPE_CHECKING:
    from qa_service.server.services.collection_set import CollectionSet


class Service(Protocol):
    """Takes calls, and settles each of them once."""

    def submit(self, call: Call) -> None:
        """Takes a call, and settles it at once or later, unless it is cancelled before."""


@dataclass(eq=False)
class Gate:
    """The outermost service: refuses calls once it is closed, while the server drains."""

    service: Service
    is_open: bool = True

    def submit(self, call: Call) -> None:
        if self.is_open:
            self.service.submit(call)
        else:
            call.fail(ShuttingDownError())


@dataclass(frozen=True, eq=False)
class Access:
    """Names the collections that a question is about, and refuses some to some tokens.

    It stands before all that answers a question: an equal question of another token may be kept.
    """

    service: Service
    collections: CollectionSet

    def submit(self, call: Call) -> None:
        if call.request.collection is None:
            self.service.submit(call)
            return
        names = call.request.collections
        try:
            found = self.collections.choose(names, call.scope.flow)
        except QaError as error:
            call.fail(error)
            return
        if found == names:
            self.service.submit(call)
            return
        child = call.child(msgspec.structs.replace(call.request, collection=list(found)), "")
        child.then(call.settle)
        self.service.submit(child)
