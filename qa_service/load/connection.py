"""One connection of the load generator. It never blocks: it is opened step by step.

    connect ─▶ TLS, if it is used ─▶ token, if there is one ─▶ open ─▶ closed

Requests asked before it is open are sent when it opens. Each request is settled exactly once: with
its reply's code, with `client_timeout`, or with the reason why the connection was lost.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from qa_service.client import Address
from qa_service.data.squad import SquadQuestion
from qa_service.load.loop import READ, WRITE, LoadLoop
from qa_service.load.wire import Reply, Wire, WireError

_RECEIVE_BYTES = 1 << 16
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how to connect to it and check its answers.

    Attributes:
        host: The server's certificate must name it.
        check: Returns an answer's error code; empty for a right answer.
    """

    host: str
    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None
    token: str | None
    wire: Callable[[], Wire]
    check: Callable[[SquadQuestion, Reply], str]


@dataclass(slots=True)
class Request:
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
    """Is told of the events of a connection and its requests."""

    def opened(self, connection: Connection) -> None:
        """Requests are sent at once from now on."""

    def settled(self, connection: Connection, request: Request, code: str) -> None:
        """A request was answered, or failed with this code."""

    def lost(self, connection: Connection, code: str) -> None:
        """The connection is closed, and its requests are settled."""


class _Lost(Exception):  # noqa: N818 - not an error of ours
    """The connection is lost; its argument is the error code."""


class Connection:
    """A socket, its buffers and the requests in flight on it."""

    def __init__(self, loop: LoadLoop, target: Target, owner: Owner) -> None:
        self._loop, self._target, self._owner = loop, target, owner
        self._wire = target.wire()
        self._socket: socket.socket | None = None
        self._descriptor = -1
        self._steps = self._opening()
        self._inbox, self._outbox, self._backlog = bytearray(), bytearray(), bytearray()
        self._refusal = ""
        self._given_up: set[int] = set()
        self._writing = False
        self.in_flight: dict[int, Request] = {}
        self.is_open = self.was_open = self.is_closed = False

    def open(self) -> None:
        """Begins to connect; may tell the owner the result before it returns."""
        self._ready(0)

    def ask(self, request: Request, body: bytes) -> None:
        """Sends a request now, or when the connection is open."""
        self.in_flight[request.id] = request
        frame = self._wire.request(request.id, body)
        if not self.is_open:
            self._backlog += frame
            return
        self._outbox += frame
        if not self._writing:
            self._guard(self._flush)

    def give_up(self, request: Request) -> None:
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
        self.is_open, self.is_closed = False, True
        self._drop_socket()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._descriptor)
            self._socket.close()
            self._socket = None

    def _settle(self, request: Request, code: str) -> None:
        request.is_settled = True
        self._owner.settled(self, request, code)

    def _ready(self, ready: int) -> None:
        """The loop's callback."""
        if self.is_open:
            if ready & WRITE:
                self._guard(self._flush)
            if ready & READ and self.is_open:
                self._guard(self._receive)
        elif not self.is_closed:
            self._guard(self._step)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except _Lost as lost:
            self.lose(str(lost))

    def _watch(self, events: int) -> None:
        self._loop.watch(self._descriptor, events, self._ready)

    def _step(self) -> None:
        """Runs the next step of opening."""
        events = next(self._steps, None)
        if events is not None:
            self._watch(events)
            return
        self.is_open = self.was_open = True
        self._outbox, self._writing = self._backlog, False
        self._watch(READ)
        self._flush()
        self._owner.opened(self)

    def _opening(self) -> Iterator[int]:
        """Connects and authenticates; yields the events it waits for."""
        yield from self._connect()
        assert self._socket is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._target.tls is not None:
            yield from self._handshake(self._target.tls)
        if self._target.token is not None:
            yield from self._send_token(self._target.token)

    def _connect(self) -> Iterator[int]:
        for family, address in self._target.addresses:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._descriptor = self._socket.fileno()
            self._socket.setblocking(False)
            error = self._socket.connect_ex(address)
            self._watch(WRITE)
            if error in {0, errno.EINPROGRESS}:
                yield WRITE
                error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not error:
                return
            self._drop_socket()
        raise _Lost("server_unreachable")

    def _handshake(self, tls: ssl.SSLContext) -> Iterator[int]:
        assert self._socket is not None
        try:
            # The new socket has the same descriptor, which the loop still watches.
            self._socket = sock = tls.wrap_socket(
                self._socket, server_hostname=self._target.host, do_handshake_on_connect=False
            )
            while (events := _handshake_step(sock)) is not None:
                yield events
        except (ssl.SSLEOFError, ConnectionError):
            raise _Lost("server_unreachable") from None
        except OSError:
            raise _Lost("tls_error") from None

    def _send_token(self, token: str) -> Iterator[int]:
        """Waits for the reply, so that no question is sent to a server that refuses the token."""
        assert self._socket is not None
        self._outbox += self._wire.auth_message(token)
        self._flush()
        while True:
            yield READ | (WRITE if self._outbox else 0)
            self._flush()
            self._fill_inbox()
            for reply in self._replies():
                if reply.code:
                    raise _Lost(reply.code)
                return

    def _flush(self) -> None:
        """Sends as much as the socket takes."""
        assert self._socket is not None
        if self._outbox:
            try:
                del self._outbox[: self._socket.send(self._outbox)]
            except _AGAIN:
                pass
            except OSError:
                # The server has closed, but its last reply may still arrive: keep reading.
                self._outbox.clear()
        if self._writing != bool(self._outbox):
            self._writing = not self._writing
            self._watch(READ | (WRITE if self._writing else 0))

    def _receive(self) -> None:
        """Reads what has arrived, and settles the requests that it replies to."""
        self._fill_inbox()
        for reply in self._replies():
            if reply.id is None:
                self._refuse(reply.code or "protocol_error")
            elif (request := self.in_flight.pop(reply.id, None)) is not None:
                self._settle(request, reply.code or self._target.check(request.question, reply))
            elif reply.id in self._given_up:
                self._given_up.remove(reply.id)
            else:
                raise _Lost("protocol_error")
            if self.is_closed:
                return

    def _refuse(self, code: str) -> None:
        """Handles an error that names no request: the server is about to close."""
        self._refusal = code
        if len(self.in_flight) <= 1:
            raise _Lost(code)

    def _replies(self) -> Iterator[Reply]:
        try:
            yield from self._wire.replies(self._inbox)
        except WireError:
            raise _Lost("protocol_error") from None

    def _fill_inbox(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except _AGAIN:
            return
        except ssl.SSLEOFError:
            data = b""
        except ssl.SSLError:
            raise _Lost("tls_error") from None
        except OSError:
            data = b""
        if not data:
            raise _Lost("connection_lost")
        self._inbox += data


def _handshake_step(sock: ssl.SSLSocket) -> int | None:
    """What the handshake waits to be ready for; None if it is done."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return READ
    except ssl.SSLWantWriteError:
        return WRITE
    return None
