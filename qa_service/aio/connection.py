"""One TCP connection of an asyncio program: frames out, replies in, matched by id.

    connection = await open_connection(server, terms)
    reply = await connection.ask(7, frame, decode_reply)

A connection is closed when it is lost, when nothing comes for `timeout_s` while the server owes a
reply, and when a reply cannot be read; every question in flight on it then fails. A question that
nobody waits for any more is withdrawn by a cancel frame; its late reply is dropped. After a reply
with `closing` it takes no more questions, and is closed when those in flight are answered.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from qa_service.client import (
    CONNECT_TIMEOUT_S,
    LOST,
    Address,
    ConnectionLostError,
    ProtocolError,
    QaClientError,
    QaServerError,
    RequestTimeoutError,
    Server,
    ServerUnreachableError,
    Terms,
    TlsError,
    check_authenticated,
    copied,
    decode_reply,
    encode_frame,
    server_error,
    take_frames,
    tls_reason,
    unreachable,
)

_Result = TypeVar("_Result")

BACKLOG_WAIT_S = 0.01
"""Between attempts at a Unix socket whose backlog is full: a loop accepts in each round."""


class UnreadError(ConnectionLostError):
    """The server refused another question's frame and closed; it did not read this question."""


class _Head(msgspec.Struct):
    id: Any = None
    closing: Any = False


_head_decoder = msgspec.json.Decoder(_Head)


@dataclass(slots=True)
class _Asked:
    result: asyncio.Future[Any]
    read: Callable[[bytes], Any]
    frame_bytes: int


async def open_connection(server: Server, terms: Terms) -> AsyncConnection:
    """Connects to the first of a server's addresses that accepts, and sends the token.

    Raises:
        QaClientError: The server cannot be reached or trusted, or does not accept the client.
    """
    try:
        async with asyncio.timeout(min(CONNECT_TIMEOUT_S, terms.timeout_s)):
            connection = await _connect(server, terms)
            try:
                if terms.token is not None:
                    await connection.authenticate(terms.token)
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError as error:
        raise ServerUnreachableError(f"no server can be reached at {server} in time") from error
    except (ssl.SSLError, ssl.CertificateError) as error:
        kind = ServerUnreachableError if isinstance(error, LOST) else TlsError
        raise kind(f"no TLS with {server}: {tls_reason(error)}") from error
    except OSError as error:
        raise unreachable(server, error) from error


async def _connect(server: Server, terms: Terms) -> AsyncConnection:
    loop = asyncio.get_running_loop()
    sock = await _connected_socket(server.addresses)
    try:
        _, connection = await loop.create_connection(
            lambda: AsyncConnection(terms),
            sock=sock,
            ssl=terms.tls,
            server_hostname=server.host if terms.tls else None,
        )
    except BaseException:
        sock.close()
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

    Raises:
        OSError: Nobody listens there.
    """
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            await asyncio.sleep(BACKLOG_WAIT_S)
        else:
            return


class AsyncConnection(asyncio.Protocol):
    """A connection; `open_connection` makes it.

    Attributes:
        in_flight: The questions whose tasks wait, by id.
        closed: Done when the connection is closed.
        error: Why it was closed.
        is_leaving: Whether it takes no more questions.
        on_leaving: Called when it takes no more questions, unless it is lost before.
        on_lost: Called when it is closed, before its questions fail.
    """

    def __init__(self, terms: Terms) -> None:
        self._loop = asyncio.get_running_loop()
        self.in_flight: dict[int, _Asked] = {}
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.error: QaClientError | None = None
        self.is_leaving = False
        self.on_leaving: Callable[[AsyncConnection], None] = lambda _: None
        self.on_lost: Callable[[AsyncConnection], None] = lambda _: None
        self._terms = terms
        self._abandoned: set[int] = set()
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()
        self._outbox: list[bytes] = []
        self._heard_s = -math.inf
        self._silence: asyncio.TimerHandle | None = None
        self._auth_reply: asyncio.Future[dict[str, Any]] | None = None
        self._refusal: QaServerError | None = None

    @property
    def can_ask(self) -> bool:
        """Whether it takes questions."""
        return not (self.closed.done() or self.is_leaving or self._refusal)

    @property
    def _is_owed(self) -> bool:
        """Whether the server still owes a reply, also to an abandoned question."""
        return bool(self.in_flight or self._abandoned)

    async def authenticate(self, token: str) -> None:
        """Sends the token, and waits until it is accepted.

        Raises:
            QaClientError: It is not.
        """
        self._auth_reply = self._loop.create_future()
        self._send(encode_frame({"type": "auth", "token": token}))
        check_authenticated(await self._auth_reply)

    async def ask(self, wire_id: int, frame: bytes, read: Callable[[bytes], _Result]) -> _Result:
        """Sends a question, and waits for its reply; if the task is cancelled, withdraws it.

        Args:
            wire_id: The id in the frame, used once on this connection.
            read: Returns the result for a reply's body; the connection is closed if it raises
                `ValueError` or `ProtocolError`.

        Raises:
            QaClientError: The connection was lost, or the server refused the frame.
        """
        if self.closed.done():
            raise ConnectionLostError("the connection to the server was lost")
        if not self._is_owed:
            self._heard_s = self._loop.time()
            self._watch()
        asked = _Asked(self._loop.create_future(), read, len(frame))
        self.in_flight[wire_id] = asked
        self._send(frame)
        try:
            result: _Result = await asked.result
            return result
        except asyncio.CancelledError:
            self._abandon(wire_id)
            raise

    def close_when_idle(self) -> None:
        """Takes no more questions; closes when those in flight are settled."""
        self._retire()
        self._close_if_useless()

    def _retire(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self.on_leaving(self)

    def close(self, error: QaClientError | None = None) -> None:
        """Closes it; every question in flight fails with the error."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(error or ConnectionLostError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        # Not asserted: uvloop's transports are asyncio's by their methods alone.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails every question in flight."""
        if isinstance(exc, ssl.SSLError) and not isinstance(exc, LOST):
            self._lose(TlsError(tls_reason(exc)))
        else:
            words = "the server closed the connection before it answered"
            self._lose(ConnectionLostError(words))

    def data_received(self, data: bytes) -> None:
        """Settles the questions whose replies are complete."""
        self._heard_s = self._loop.time()
        self._inbox += data
        try:
            for body in take_frames(self._inbox, self._terms.max_response_bytes):
                self._settle(body)
        except ProtocolError as error:
            self.close(error)
        except (ValueError, RecursionError) as error:
            self.close(ProtocolError(f"the server sent an invalid reply: {error}"))
        self._close_if_useless()

    def _send(self, frame: bytes) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        """Writes the frames of one turn of the loop together."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def _settle(self, body: bytes) -> None:
        head = _head_decoder.decode(body)
        if head.closing is True:
            self._retire()
        wire_id = head.id
        if wire_id is None:
            self._settle_nameless(decode_reply(body))
        elif not isinstance(wire_id, int) or wire_id not in {*self.in_flight, *self._abandoned}:
            raise ProtocolError("the server replied to a question that was not asked")
        elif wire_id in self._abandoned:
            self._abandoned.remove(wire_id)
        else:
            asked = self.in_flight[wire_id]
            result = asked.read(body)
            del self.in_flight[wire_id]
            if not asked.result.done():
                asked.result.set_result(result)

    def _settle_nameless(self, reply: dict[str, Any]) -> None:
        """Takes the reply to the token, or the reason why the server is about to close."""
        if self._auth_reply is not None and not self._auth_reply.done():
            self._auth_reply.set_result(reply)
            return
        self._refusal = server_error(reply.get("error"))
        if self._refusal.code != "frame_too_large":
            self.close(self._refusal)

    def _abandon(self, wire_id: int) -> None:
        if self.in_flight.pop(wire_id, None) is not None:
            self._abandoned.add(wire_id)
            self._send(encode_frame({"type": "cancel", "id": wire_id}))
            self._close_if_useless()

    def _close_if_useless(self) -> None:
        if self.is_leaving and not self.in_flight:
            self.close()

    def _watch(self) -> None:
        """Sets the timer that ends a silence, unless it runs already."""
        if self._silence is None and self._terms.timeout_s < math.inf:
            due_s = self._heard_s + self._terms.timeout_s
            self._silence = self._loop.call_at(due_s, self._on_silence)

    def _on_silence(self) -> None:
        self._silence = None
        if not self._is_owed:
            return
        if self._loop.time() < self._heard_s + self._terms.timeout_s:
            self._watch()
            return
        words = f"the server did not reply within {self._terms.timeout_s:g} s"
        self.close(RequestTimeoutError(words))

    def _lose(self, error: QaClientError) -> None:
        if self.closed.done():
            return
        self.error = self._refusal or error
        self.closed.set_result(None)
        self.on_lost(self)
        if self._silence is not None:
            self._silence.cancel()
        if self._auth_reply is not None and not self._auth_reply.done():
            self._auth_reply.set_exception(error)
        waiting = [asked for asked in self.in_flight.values() if not asked.result.done()]
        self.in_flight.clear()
        self._abandoned.clear()
        if self._refusal is not None and self._refusal.code == "frame_too_large" and waiting:
            # One of these was refused, so the largest is over the limit; later ones were not read.
            guilty = max(waiting, key=lambda asked: asked.frame_bytes)
            guilty.result.set_exception(self._refusal)
            waiting.remove(guilty)
            error = UnreadError(str(error))
        for asked in waiting:
            asked.result.set_exception(copied(error))
