"""One connection of the load generator. It never blocks, and is opened step by step.

Each request is settled exactly once: with its reply's code, with `client_timeout`, or with the
reason why the connection was lost. These codes are those of `QaClientError`'s kinds.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qa_service.client import QaClientError, Server, Stream, Terms
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.loop import LoadLoop
from qa_service.programs.load.wire import Reply, Wire


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how to connect to it and check its answers.

    Attributes:
        check: Returns an answer's error code; empty for a right answer.
    """

    server: Server
    terms: Terms
    wire: Callable[[], Wire]
    check: Callable[[SquadQuestion, Reply], str]


@dataclass(slots=True)
class SentRequest:
    """A question in flight.

    Attributes:
        id: Never reused.
        index: The question's index in the plan.
        started_s: Start of its latency.
    """

    id: int
    index: int
    question: SquadQuestion
    started_s: float
    deadline_s: float
    is_settled: bool = False


class Owner(Protocol):
    """Receives the events of a connection and its requests."""

    def opened(self, connection: LoadConnection) -> None:
        """Requests are sent at once from now on."""

    def settled(self, connection: LoadConnection, request: SentRequest, code: str) -> None:
        """A request was answered, or failed with this code."""

    def lost(self, connection: LoadConnection, code: str) -> None:
        """The connection is closed, and its requests are settled."""


class LoadConnection(Stream):
    """A stream in the generator's loop, and the requests in flight on it.

    Attributes:
        is_leaving: Whether the server takes no more requests on it; the owner closes it when those
            in flight are settled.
    """

    def __init__(self, loop: LoadLoop, target: Target, owner: Owner) -> None:
        super().__init__(target.server, target.terms)
        self.opens_by_s = math.inf  # a timer of the loop calls `give_up_opening`
        self._loop, self._target, self._owner = loop, target, owner
        self._wire = target.wire()
        self._watched: socket.socket | None = None
        self._descriptor = self._events = -1
        self._refusal = ""
        self._given_up: set[int] = set()
        self.in_flight: dict[int, SentRequest] = {}
        self.was_open = self.is_closed = self.is_leaving = False

    def open(self) -> None:
        """Begins to connect; may tell the owner the result before it returns."""
        self._send(b"")

    def ask(self, request: SentRequest, body: bytes) -> None:
        """Sends a request now, or when the connection is open."""
        self.in_flight[request.id] = request
        self._send(self._wire.request(request.id, body))

    def give_up(self, request: SentRequest) -> None:
        """Stops waiting for a reply; one that comes later is ignored."""
        if len(self.in_flight) == 1:
            self.lose("client_timeout")
            return
        del self.in_flight[request.id]
        self._given_up.add(request.id)
        self._settle(request, "client_timeout")

    def give_up_opening(self) -> None:
        """Gives up connecting, if it is still not open."""
        if not self.was_open:
            self.lose("server_unreachable")

    def lose(self, code: str) -> None:
        """Closes the connection, and settles its requests."""
        if self.is_closed:
            return
        self.close()
        requests, self.in_flight = self.in_flight, {}
        for request in requests.values():
            self._settle(request, self._refusal or code)
        self._owner.lost(self, self._refusal or code)

    def close(self) -> None:
        """Closes it without telling the owner."""
        self.is_closed = True
        if self._watched is not None:  # else it has no socket yet
            self._unwatch()
            super().close()

    def _settle(self, request: SentRequest, code: str) -> None:
        request.is_settled = True
        self._owner.settled(self, request, code)

    def _send(self, data: bytes) -> None:
        try:
            self.send(data)
        except QaClientError as error:
            self.lose(error.code)
        else:
            self._watch()

    def _ready(self, _: int) -> None:
        """The loop's callback."""
        if self.is_closed:  # by what the loop called before, in the same turn
            return
        try:
            self.advance()
            if self.is_open and not self.was_open:
                self.was_open = True
                self._owner.opened(self)
            if self.is_open and not self.is_closed:
                self._take_replies()
        except QaClientError as error:
            self.lose(error.code)
        else:
            self._watch()

    def _watch(self) -> None:
        """Has the loop wait for the events of the present socket."""
        if self.is_closed or (self._watched is self.socket and self._events == self.events):
            return
        if self._watched is not self.socket:
            self._unwatch()
            self._watched, self._descriptor = self.socket, self.socket.fileno()
        self._events = self.events
        self._loop.watch(self._descriptor, self._events, self._ready)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.unwatch(self._descriptor)
            self._watched = None

    def _take_replies(self) -> None:
        """Settles the requests whose replies have arrived."""
        for reply in self._wire.replies(self._inbox):
            self.is_leaving |= reply.closing
            if reply.id is None:
                self._refuse(reply.code or "protocol_error")
            elif (request := self.in_flight.pop(reply.id, None)) is not None:
                self._settle(request, reply.code or self._target.check(request.question, reply))
            elif reply.id in self._given_up:
                self._given_up.remove(reply.id)
            else:
                self.lose("protocol_error")
            if self.is_closed:
                return

    def _refuse(self, code: str) -> None:
        """Handles an error that names no request: the server is about to close."""
        self._refusal = code
        if len(self.in_flight) <= 1:
            self.lose(code)
