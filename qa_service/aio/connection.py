"""A conversation over one TCP connection of an asyncio program.

    connection = await open_connection(server, terms)
    reply = await connection.ask(7, frame, decode_reply)

What a conversation promises, `qa_service/client.py` says. A question that nobody waits for any more
is withdrawn by a cancel frame.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from qa_service.client import (
    LOST,
    Address,
    Asked,
    ConnectionLostError,
    Conversation,
    QaClientError,
    QaServerError,
    Server,
    Settled,
    Terms,
    TlsError,
    decode_reply,
    server_error,
    take_frames,
    tls_failure,
    tls_reason,
    unreachable,
)

_Result = TypeVar("_Result")

BACKLOG_WAIT_S = 0.01
"""Between attempts at a Unix socket whose backlog is full: a loop accepts in each round."""


class _Head(msgspec.Struct):
    id: Any = None
    closing: Any = False


_head_decoder = msgspec.json.Decoder(_Head)


@dataclass(slots=True)
class _Reply:
    """A reply of which only the head has been read."""

    id: Any
    closing: Any
    body: bytes

    @property
    def error(self) -> QaServerError:
        """The error of a reply to no request."""
        return server_error(decode_reply(self.body).get("error"))


@dataclass(slots=True, eq=False)
class _Asked(Asked):
    result: asyncio.Future[Any]
    read_body: Callable[[bytes], Any]

    def read(self, reply: _Reply, _now_s: float) -> Any:  # noqa: ANN401
        return self.read_body(reply.body)


async def open_connection(server: Server, terms: Terms) -> AsyncConnection:
    """Connects to the first of a server's addresses that accepts, and sends the token.

    Raises:
        QaClientError: The server cannot be reached or trusted, or does not accept the client.
    """
    connection = AsyncConnection(server, terms)
    try:
        await connection.opened
    except asyncio.CancelledError:
        connection.close()
        raise
    return connection


async def _connected_socket(addresses: Sequence[Address]) -> socket.socket:
    failure = OSError("it has no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            if family == socket.AF_UNIX:
                await connect_unix(sock, address)
            else:
                await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def connect_unix(sock: socket.socket, path: str) -> None:
    """Connects a non-blocking Unix socket; waits while the server's backlog is full.

    asyncio takes EAGAIN, which says that it is full, for a connection that is under way.
    """
    while True:
        try:
            return sock.connect(path)
        except BlockingIOError:
            await asyncio.sleep(BACKLOG_WAIT_S)


class AsyncConnection(asyncio.Protocol):
    """A connection, which opens at once.

    Args:
        on_settled: Takes what is settled if nothing is asked by `ask`; called once more when the
            conversation has ended.

    Attributes:
        opened: Done when the server has accepted the client, or with the reason why not.
        closed: Done when the connection is closed.
        on_end: Called once, when it takes no more questions.
    """

    def __init__(
        self,
        server: Server,
        terms: Terms,
        on_settled: Callable[[AsyncConnection, list[Settled]], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        replies = None if on_settled else self._heads
        self.conversation = Conversation(server, terms, self._loop.time(), replies)
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.on_end: Callable[[AsyncConnection], None] = lambda _: None
        self._terms = terms
        self._on_settled = on_settled or _set_results
        self._has_told = self._is_flushing = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.opening = self._loop.create_task(self._open())
        self._set_timer()

    @property
    def can_ask(self) -> bool:
        """Whether it takes questions."""
        return self.conversation.takes_more

    async def ask(self, wire_id: int, frame: bytes, read: Callable[[bytes], _Result]) -> _Result:
        """Sends a question, and waits for its reply; if the task is cancelled, withdraws it.

        Args:
            wire_id: The id in the frame, used once on this connection.
            read: Returns the result for a reply's body; the connection is closed if it raises
                `ValueError` or `ProtocolError`.

        Raises:
            QaClientError: The connection was lost, or the server refused the frame.
        """
        if self.conversation.error is not None:
            raise ConnectionLostError("the connection to the server was lost")
        asked = _Asked(wire_id, frame, self._loop.create_future(), read)
        self.conversation.ask(asked, self._loop.time())
        self.flush()
        try:
            result: _Result = await asked.result
            return result
        except asyncio.CancelledError:
            self.conversation.withdraw(wire_id)
            self.flush()
            raise

    def flush(self) -> None:
        """Sends what there is, with the rest of this turn of the loop, or closes a useless one."""
        if self._timer is None and self._terms.timeout_s < math.inf:
            self._set_timer()
        if self.conversation.is_over:
            self.close()
        elif self.conversation.has_bytes and not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._write)

    def close(self, error: QaClientError | None = None) -> None:
        """Closes it; every question in flight fails with the error."""
        if self._transport is not None:
            self._transport.abort()
        error = error or ConnectionLostError("the connection was closed")
        self._take(self.conversation.end(error))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        # Not asserted: uvloop's transports are asyncio's by their methods alone.
        self._transport = cast("asyncio.Transport", transport)
        self.conversation.begin()
        self._take([])

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails every question in flight."""
        if isinstance(exc, ssl.SSLError) and not isinstance(exc, LOST):
            self.close(TlsError(tls_reason(exc)))
        else:
            words = "the server closed the connection before it answered"
            self.close(ConnectionLostError(words))

    def data_received(self, data: bytes) -> None:
        """Settles the questions whose replies are complete."""
        self._take(self.conversation.receive(data, self._loop.time()))

    async def _open(self) -> None:
        server, tls = self.conversation.server, self._terms.tls
        try:
            sock = await _connected_socket(server.addresses)
            try:
                host = server.host if tls else None
                await self._loop.create_connection(
                    lambda: self, sock=sock, ssl=tls, server_hostname=host
                )
            except BaseException:
                sock.close()
                raise
        except (ssl.SSLError, ssl.CertificateError) as error:
            self.close(tls_failure(server, error))
        except OSError as error:
            self.close(unreachable(server, error))

    def _take(self, settled: list[Settled]) -> None:
        """Passes on what is settled, and sees how the conversation stands."""
        if self.closed.done():
            return
        error = self.conversation.error
        if error is not None:
            self.closed.set_result(None)
            self.opening.cancel()
            if self._timer is not None:
                self._timer.cancel()
            if self._transport is not None:
                self._transport.abort()
        if not self.opened.done():
            if error is not None:
                self.opened.set_exception(error)
                self.opened.exception()  # perhaps nobody waits for it
            elif self.conversation.is_open:
                self.opened.set_result(None)
        self._on_settled(self, settled)
        if not (self._has_told or self.conversation.takes_more):
            self._has_told = True
            self.on_end(self)
        if error is None:
            self.flush()

    def _write(self) -> None:
        self._is_flushing = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self.conversation.bytes_to_send())

    def _set_timer(self) -> None:
        """Has the time looked at when something is due; not earlier than that."""
        due_s = self.conversation.due_s
        self._timer = self._loop.call_at(due_s, self._check_time) if due_s < math.inf else None

    def _check_time(self) -> None:
        self._set_timer()
        self._take(self.conversation.check_time(self._loop.time()))

    def _heads(self, inbox: bytearray) -> Iterator[_Reply]:
        for body in take_frames(inbox, self._terms.max_response_bytes):
            head = _head_decoder.decode(body)
            yield _Reply(head.id, head.closing, body)


def _set_results(_connection: AsyncConnection, settled: list[Settled]) -> None:
    for asked, result, was_lost in settled:
        if asked.result.done():  # its task was cancelled in this turn of the loop
            continue
        if was_lost:
            asked.result.set_exception(result)
        else:
            asked.result.set_result(result)
