"""Asking the server from an asyncio program: one connection, opened again whenever it is lost.

    link = ServerLink(ServerAddress("localhost", 9999), on_change=lambda: None)
    async with link.kept_open():
        await link.settled()
        reply = await link.ask(request)

Questions are pipelined, each under an id that is never used twice. What is always true: a
question that was given to `ask` ends with a reply, the server's error, or `ConnectionLostError`;
a late reply to one that is given up is dropped; the connection is given up when nothing comes
for `timeout_s` while something is awaited, or when what comes cannot be understood.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import msgspec

from qa_service.broker.job import Reply, Request, encode_request, parse_error, refused
from qa_service.client import (
    ConnectionLostError,
    ProtocolError,
    QaClientError,
    QaServerError,
    ServerUnreachableError,
)

_LENGTH = struct.Struct(">I")
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.05, 1.0
_MAX_REPLY_BYTES = 1 << 24
_reply_decoder = msgspec.json.Decoder(Reply)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server is, and what it asks of a client.

    Attributes:
        host: Its name or address.
        port: Its TCP port.
        tls: How TLS is spoken; None for not.
        token: Shown to the server on each connection; None shows nothing.
        max_frame_bytes: The server's flag of this name: no longer request is sent.
        timeout_s: Longest wait for a connection, and for anything while a reply is awaited.
    """

    host: str = "localhost"
    port: int = 9999
    tls: ssl.SSLContext | None = None
    token: str | None = None
    max_frame_bytes: int = 1 << 18
    timeout_s: float = 60.0


@dataclass(slots=True)
class _Asked:
    answer: asyncio.Future[Reply]
    frame_bytes: int


class ServerLink:
    """A connection to the server that comes back.

    Args:
        address: Where the server is.
        on_change: Called when `is_connected` has changed.

    Attributes:
        last_error: Why no connection could be made; None while there is one.
    """

    def __init__(self, address: ServerAddress, on_change: Callable[[], None]) -> None:
        self._address = address
        self._on_change = on_change
        self._ids = itertools.count(1)
        self._connection: _Connection | None = None
        self._settled = asyncio.Event()
        self.last_error: QaClientError | None = None

    @property
    def is_connected(self) -> bool:
        """Whether questions can be asked now."""
        return self._connection is not None

    @property
    def in_flight(self) -> int:
        """Questions that were sent and not answered."""
        return len(self._connection.in_flight) if self._connection else 0

    async def settled(self) -> None:
        """Waits until the first connection is made, or has failed: see `last_error`."""
        await self._settled.wait()

    @contextlib.asynccontextmanager
    async def kept_open(self) -> AsyncIterator[None]:
        """Keeps the connection open as long as the block runs."""
        keeper = asyncio.create_task(self._keep_open())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def ask(self, request: Request, timeout_ms: float | None = None) -> Reply:
        """Asks, and waits for the reply.

        Args:
            request: What is asked.
            timeout_ms: How long it may wait in the server's queue; None for the server's own.

        Raises:
            QaServerError: The server's error, or one that it is spared.
            ConnectionLostError: There is no connection, or it was lost before the reply.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError("there is no connection to the server")
        wire_id = next(self._ids)
        body = encode_request(request, wire_id, timeout_ms)
        if len(body) > self._address.max_frame_bytes:
            limit = self._address.max_frame_bytes
            raise refused("frame_too_large", f"a frame of {len(body)} bytes; at most {limit}")
        reply = await connection.ask(wire_id, body)
        if error := parse_error(reply):
            raise error
        return reply

    async def _keep_open(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                connection = await self._connect()
            except (QaClientError, OSError) as error:
                self._note_failure(error)
            else:
                backoff_s = _FIRST_BACKOFF_S
                await self._hold(connection)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    async def _connect(self) -> _Connection:
        """Connects, and authenticates.

        Raises:
            OSError: No connection can be made.
            QaClientError: The server does not let the client in.
        """
        address = self._address
        connection = _Connection(address.timeout_s, self._lost)
        try:
            async with asyncio.timeout(address.timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, address.host, address.port, ssl=address.tls
                )
                if address.token is not None:
                    await connection.authenticate(address.token)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _hold(self, connection: _Connection) -> None:
        """Lets questions be asked until the connection is lost."""
        _logger.info("connected to the server at %s:%d", self._address.host, self._address.port)
        self.last_error = None
        self._change(connection)
        try:
            await connection.watch()
            _logger.warning("the connection to the server was lost")
        finally:
            connection.close()

    def _lost(self, connection: _Connection) -> None:
        """Lets nobody ask on a connection that is gone; comes before its questions fail."""
        if connection is self._connection:
            self._change(None)

    def _change(self, connection: _Connection | None) -> None:
        self._connection = connection
        self._settled.set()
        self._on_change()

    def _note_failure(self, error: QaClientError | OSError) -> None:
        """Keeps why no connection could be made; logs it once."""
        if not isinstance(error, QaClientError):
            where = f"{self._address.host}:{self._address.port}"
            error = ServerUnreachableError(f"no server can be reached at {where} ({error})")
        if str(error) != str(self.last_error):
            _logger.warning("%s", error)
        self.last_error = error
        self._settled.set()


class _Connection(asyncio.Protocol):
    """One TCP connection: frames out, replies in, matched by id."""

    def __init__(self, timeout_s: float, on_lost: Callable[[_Connection], None]) -> None:
        self.in_flight: dict[int, _Asked] = {}
        self._timeout_s, self._on_lost = timeout_s, on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()
        self._outbox: list[bytes] = []
        self._heard_s = self._loop.time()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._auth_reply: asyncio.Future[Reply] | None = None
        self._refusal: QaServerError | None = None

    async def authenticate(self, token: str) -> None:
        """Sends the token, and waits until it is accepted.

        Raises:
            QaClientError: The server does not let the client in.
        """
        self._auth_reply = self._loop.create_future()
        self._send(msgspec.json.encode({"type": "auth", "token": token}))
        reply = await self._auth_reply
        if error := parse_error(reply):
            raise error

    async def ask(self, wire_id: int, body: bytes) -> Reply:
        """Sends a request, and waits for the reply under its id.

        Raises:
            QaClientError: The connection was lost, or the server refused the frame.
        """
        if self._closed.done():
            raise ConnectionLostError("the connection to the server was lost")
        asked = _Asked(self._loop.create_future(), len(body))
        self.in_flight[wire_id] = asked
        self._heard_s = max(self._heard_s, self._loop.time() if len(self.in_flight) == 1 else 0.0)
        self._send(body)
        return await asked.answer

    async def watch(self) -> None:
        """Returns when the connection is lost; gives it up itself when the server is silent."""
        while not self._closed.done():
            await asyncio.wait([self._closed], timeout=min(1.0, self._timeout_s))
            if self.in_flight and self._loop.time() - self._heard_s > self._timeout_s:
                _logger.warning("the server did not reply within %g s", self._timeout_s)
                self.close()
                return

    def close(self) -> None:
        """Closes it; what is in flight is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        self._inbox += data
        try:
            for frame in self._frames():
                self._settle(frame)
        except (msgspec.DecodeError, ValueError, RecursionError, ProtocolError) as error:
            _logger.warning("the server sent what is no reply: %s", error)
            self.close()

    def _send(self, body: bytes) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += (_LENGTH.pack(len(body)), body)

    def _flush(self) -> None:
        """Writes in one go what was sent in one turn of the loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def _frames(self) -> Iterator[bytes]:
        start = 0
        while len(self._inbox) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._inbox, start)
            if length > _MAX_REPLY_BYTES:
                raise ProtocolError(f"a reply of {length} bytes")
            end = start + _LENGTH.size + length
            if len(self._inbox) < end:
                break
            yield bytes(self._inbox[start + _LENGTH.size : end])
            start = end
        del self._inbox[:start]

    def _settle(self, frame: bytes) -> None:
        reply = _reply_decoder.decode(frame)
        reply_id = msgspec.json.decode(reply["id"]) if "id" in reply else None
        if reply_id is None:
            self._settle_nameless(reply)
            return
        asked = self.in_flight.pop(reply_id, None)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(reply)

    def _settle_nameless(self, reply: Reply) -> None:
        """Takes a reply without an id: to the token, or why the connection is about to close."""
        if self._auth_reply is not None and not self._auth_reply.done():
            self._auth_reply.set_result(reply)
            return
        self._refusal = parse_error(reply)
        _logger.warning("the server refused a frame: %s", self._refusal)
        if self._refusal is not None and self._refusal.code != "frame_too_large":
            self.close()

    def _lose(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
            self._on_lost(self)
        lost = ConnectionLostError("the server closed the connection before it answered")
        if self._auth_reply is not None and not self._auth_reply.done():
            self._auth_reply.set_exception(lost)
        waiting = [asked for asked in self.in_flight.values() if not asked.answer.done()]
        self.in_flight.clear()
        if self._refusal is not None and self._refusal.code == "frame_too_large" and waiting:
            # The refused frame is one of these, so the largest of them is over the limit.
            guilty = max(waiting, key=lambda asked: asked.frame_bytes)
            guilty.answer.set_exception(self._refusal)
            waiting.remove(guilty)
        for asked in waiting:
            asked.answer.set_exception(lost)
