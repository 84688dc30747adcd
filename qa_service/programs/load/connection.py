"""One connection of the load generator. It never blocks, and is opened step by step.

Each request is settled exactly once: with its reply's code, with `client_timeout`, or with the
reason why the connection was lost. These codes are those of `QaClientError`'s kinds.

The loop waits for sockets and timers in one thread, precise to some 0.1 ms. `epoll` waits in whole
milliseconds, longer than a quick server takes. So the loop waits with `select` on the epoll's own
descriptor, whose timeout is in microseconds.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import select
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qa_service.client import (
    Asked,
    Conversation,
    QaClientError,
    RequestTimeoutError,
    Server,
    ServerUnreachableError,
    Settled,
    Stream,
    Terms,
)
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.plan import Check
from qa_service.programs.load.wire import Reply, Wire

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class LoadLoop:
    """Calls back when a socket is ready, or at a given time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        # The number decides between equal times, because callbacks cannot be compared.
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = itertools.count()

    def call_at(self, due_s: float, callback: Callable[[], None]) -> None:
        """Calls back once, at that time of `time.perf_counter` or later."""
        heapq.heappush(self._timers, (due_s, next(self._turns), callback))

    def watch(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None:
        """Calls back with the events that the socket is ready for."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, callback)
        else:
            self._selector.register(descriptor, events, callback)

    def unwatch(self, descriptor: int) -> None:
        """Stops watching a socket; call it before closing the socket."""
        self._selector.unregister(descriptor)

    def turn(self, until_s: float) -> None:
        """Waits for a socket or a timer, at most until that time, and calls back."""
        due_s = min(until_s, self._timers[0][0]) if self._timers else until_s
        wait_s = max(0.0, due_s - time.perf_counter())
        if select.select([self._selector], [], [], wait_s)[0]:
            for key, ready in self._selector.select(0):
                key.data(ready)
        now_s = time.perf_counter()
        while self._timers and self._timers[0][0] <= now_s:
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        self._selector.close()
        self._timers.clear()


@dataclass(slots=True, eq=False)
class SentRequest(Asked):
    """A question in flight: `index` is its place in the plan, `started_s` begins its latency."""

    index: int
    question: SquadQuestion
    started_s: float
    deadline_s: float
    check: Check
    is_settled: bool = False

    def read(self, reply: Reply, _now_s: float) -> str:
        """The code of its reply."""
        return reply.code or self.check(self.question, reply)


class Owner(Protocol):
    """Receives the events of a connection and its requests."""

    def opened(self, connection: LoadConnection) -> None:
        """Requests are sent at once from now on."""

    def settled(self, connection: LoadConnection, request: SentRequest, code: str) -> None:
        """A request was answered, or failed with this code."""

    def lost(self, connection: LoadConnection, code: str) -> None:
        """The connection is closed, and its requests are settled."""


class LoadConnection:
    """A conversation in the generator's loop."""

    def __init__(
        self, loop: LoadLoop, server: Server, terms: Terms, wire: Wire, owner: Owner
    ) -> None:
        self._loop, self._owner = loop, owner
        self.wire = wire
        now_s = time.perf_counter()
        self.conversation = Conversation(server, terms, now_s, wire.replies)
        self._stream = Stream(self.conversation, terms)
        self._watched: socket.socket | None = None
        self._descriptor = self._events = -1
        self.was_open = self.is_closed = False

    def open(self) -> None:
        """Begins to connect; may tell the owner the result before it returns.

        Raises:
            OSError: This process cannot have another connection.
        """
        settled = self._stream.flush()
        cause = self.conversation.error and self.conversation.error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NO_DESCRIPTOR:
            raise cause
        self._take(settled)

    def ask(self, request: SentRequest) -> None:
        """Sends a request now, or when the connection is open."""
        self.conversation.ask(request, request.started_s)
        self._take(self._stream.flush())

    def give_up(self, request: SentRequest) -> None:
        """Stops waiting for a reply; one that comes later is ignored."""
        error = RequestTimeoutError("no reply came in time")
        if len(self.conversation.in_flight) == 1:
            self.lose(error)
            return
        self.conversation.withdraw(request.id, in_silence=True)
        request.is_settled = True
        self._owner.settled(self, request, error.code)

    def give_up_opening(self) -> None:
        """Gives up connecting, if it is still not open."""
        if not self.was_open:
            self.lose(ServerUnreachableError("no connection was made in time"))

    def lose(self, error: QaClientError) -> None:
        """Closes the connection, and settles its requests."""
        self._take(self.conversation.end(error))

    def close(self) -> None:
        """Closes it without telling the owner."""
        if not self.is_closed:
            self.is_closed = True
            self._unwatch()
            self._stream.close()

    def _ready(self, _: int) -> None:
        if self.is_closed:  # by what the loop called before, in the same turn
            return
        settled = self._stream.exchange(time.perf_counter())
        if self.conversation.is_open and not self.was_open:
            self.was_open = True
            self._owner.opened(self)
        self._take(settled)

    def _take(self, settled: list[Settled]) -> None:
        """Tells the owner what has come of its requests, and perhaps of the connection."""
        if self.is_closed:
            return
        error = self.conversation.error
        if error is not None:
            self.close()
        for request, result, was_lost in settled:
            request.is_settled = True
            self._owner.settled(self, request, result.code if was_lost else result)
        if error is not None:
            self._owner.lost(self, error.code)
        elif not self.is_closed:
            self._watch()

    def _watch(self) -> None:
        """Has the loop wait for the events of the present socket."""
        stream = self._stream
        if self._watched is stream.socket and self._events == stream.events:
            return
        if self._watched is not stream.socket:
            self._unwatch()
            self._watched, self._descriptor = stream.socket, stream.socket.fileno()
        self._events = stream.events
        self._loop.watch(self._descriptor, self._events, self._ready)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.unwatch(self._descriptor)
            self._watched = None
