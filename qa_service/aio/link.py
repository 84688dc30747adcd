"""A connection to one server, opened again whenever it is lost.

    link = ServerLink("localhost", 9999, terms, on_change=lambda: None)
    async with link.kept_open():
        await link.settled()
        reply = await link.ask(encode, read)

For programs that ask all the time and pause while there is no server, as `jobs.py` does;
`AsyncQaClient` connects when it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from qa_service.aio.connection import AsyncConnection, open_connection
from qa_service.client import (
    REFUSALS,
    ConnectionLostError,
    ProtocolError,
    QaClientError,
    QaServerError,
    RequestTimeoutError,
    Server,
    Terms,
    TlsError,
    decode_reply,
    frame_of,
    look_up,
    server_error,
    unreachable,
)

_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.05, 1.0
"""A server that starts again is found within a second, and a missing one costs next to nothing."""

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class ServerLink:
    """A connection to the server that comes back.

    Args:
        max_frame_bytes: The server's flag of this name: no longer request is sent.
        on_change: Called when `is_connected` has changed.

    Attributes:
        last_error: Why no connection could be made; None while there is one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        terms: Terms,
        on_change: Callable[[], None],
        max_frame_bytes: int = 1 << 18,
    ) -> None:
        self._host, self._port, self._terms = host, port, terms
        self._max_frame_bytes = max_frame_bytes
        self._on_change = on_change
        self._ids = itertools.count(1)
        self._connection: AsyncConnection | None = None
        self._leaving: set[AsyncConnection] = set()  # they answer what was asked, and close
        self._settled = asyncio.Event()
        self.last_error: QaClientError | None = None

    @property
    def is_connected(self) -> bool:
        """Whether questions can be asked now."""
        return self._connection is not None

    @property
    def in_flight(self) -> int:
        """Questions that were sent and not answered."""
        current = [self._connection] if self._connection else []
        return sum(len(its.conversation.in_flight) for its in [*current, *self._leaving])

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
            for connection in list(self._leaving):
                connection.close()

    async def ask(
        self, encode: Callable[[int], bytes], read: Callable[[bytes], _Result]
    ) -> _Result:
        """Asks, and waits for the reply.

        Args:
            encode: Returns the request's body for an id.
            read: Returns the result for a reply's body.

        Raises:
            QaServerError: The request is too large; sent, it would cost the others the connection.
            ConnectionLostError: There is no connection, or it was lost before the reply.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError("there is no connection to the server")
        wire_id = next(self._ids)
        body = encode(wire_id)
        if len(body) > self._max_frame_bytes:
            words = f"a frame of {len(body)} bytes; at most {self._max_frame_bytes}"
            raise QaServerError("frame_too_large", words)
        try:
            return await connection.ask(wire_id, frame_of(body), read)
        except (ProtocolError, RequestTimeoutError, TlsError) as error:
            raise ConnectionLostError(str(error)) from error

    async def _keep_open(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                connection = await self._connect()
            except QaClientError as error:
                if str(error) != str(self.last_error):
                    _logger.warning("%s", error)
                self.last_error = error
                self._settled.set()
            else:
                backoff_s = _FIRST_BACKOFF_S
                await self._hold(connection)
                if connection.conversation.is_leaving:
                    continue
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    async def _connect(self) -> AsyncConnection:
        try:
            servers = await asyncio.to_thread(look_up, self._host, self._port)
        except (OSError, UnicodeError, RuntimeError) as error:  # the last if no thread is left
            raise unreachable(f"{self._host}:{self._port}", error) from error
        server = Server(self._host, self._port, tuple(itertools.chain(*servers)))
        connection = await open_connection(server, self._terms)
        try:
            if self._terms.token is None:  # with one, the server has said what it thinks of it
                await self._check(connection)
            if not connection.can_ask:  # a draining server, which is not to be asked at once again
                raise ConnectionLostError("the server takes no more questions")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _check(self, connection: AsyncConnection) -> None:
        """Asks for the server's health, so that no question finds out that it wants a token or TLS.

        Raises:
            QaClientError: The server wants one, or does not answer.
        """
        wire_id = next(self._ids)
        frame = frame_of(b'{"id":%d,"type":"health"}' % wire_id)
        error = (await connection.ask(wire_id, frame, decode_reply)).get("error")
        if error and (refusal := server_error(error)).code in REFUSALS:
            raise refusal

    async def _hold(self, connection: AsyncConnection) -> None:
        """Lets questions be asked until the connection is lost, or the server wants it to end."""
        _logger.info("connected to the server at %s:%d", self._host, self._port)
        self.last_error = None
        is_over = asyncio.Event()

        def end(_: AsyncConnection) -> None:
            self._change(None)
            is_over.set()

        connection.on_end = end
        self._change(connection)
        try:
            await is_over.wait()
        except asyncio.CancelledError:
            connection.close()
            raise
        conversation = connection.conversation
        if conversation.is_leaving:
            _logger.info("the server closes the connection: another is opened")
        else:
            error = conversation.error or conversation.refusal
            _logger.warning("the connection to the server was lost: %s", error)
        if not connection.closed.done():
            self._leaving.add(connection)
            connection.closed.add_done_callback(lambda _: self._leaving.discard(connection))

    def _change(self, connection: AsyncConnection | None) -> None:
        self._connection = connection
        self._settled.set()
        self._on_change()
