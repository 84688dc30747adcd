"""A service that names the collections that a question is about, and refuses some to some tokens.

It stands before all that answers a question: an equal question of another token may be kept.
"""

from __future__ import annotations

import msgspec

from qa_service.errors import QaError
from qa_service.server.scheduling.call import Call
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.service import Service


class Access:
    """Passes on questions to texts, and to collections that the client may ask."""

    def __init__(self, service: Service, collections: CollectionSet) -> None:
        self._service = service
        self._collections = collections

    def submit(self, call: Call) -> None:
        """Passes a call on, with the names of all its collections, or fails it."""
        names = call.request.collections
        if not names:
            self._service.submit(call)
            return
        try:
            found = self._collections.choose(names, call.scope.flow)
        except QaError as error:
            call.fail(error)
            return
        if found == names:
            self._service.submit(call)
            return
        child = call.child(msgspec.structs.replace(call.request, collection=list(found)), "")
        child.then(call.settle)
        self._service.submit(child)
