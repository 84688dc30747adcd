"""Asking as much as the server takes: what the gateway and `jobs.py run` share.

what comes back                     what is done
an answer                           returned; the window may grow
queue_full                          asked again after retry_after_ms; the window halves
a lost connection                   asked again when there is one, at most MAX_LOSSES times
shutting_down, unavailable          raised; nobody asks for RETRY_PAUSE_S
any other error                     raised
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from qa_service.broker.job import Reply, Request
from qa_service.broker.server_link import ServerAddress, ServerLink
from qa_service.broker.window import AdaptiveLimit, Window
from qa_service.client import ConnectionLostError, QaClientError, QaServerError

MAX_LOSSES = 10
"""Connections that a question may lose before it is suspected of breaking them."""

RETRY_PAUSE_S = 1.0
_OF_THE_SERVER = {"shutting_down", "unavailable"}
_FIRST_WINDOW = 16


class ExpiredError(QaServerError):
    """A job's own time ran out before the server had an answer."""

    def __init__(self) -> None:
        super().__init__("deadline_exceeded", "the job expired before it was answered")


class Asker:
    """Asks questions over one or more connections, as many at a time as the window allows.

    Args:
        address: Where the server is.
        most: Upper bound of questions in flight.
        num_connections: Connections that share them.

    Attributes:
        window: How many are in flight.
        on_queue_full: Called for each question that the server had no room for.
    """

    def __init__(self, address: ServerAddress, most: int, num_connections: int = 1) -> None:
        self.window = Window(AdaptiveLimit(most, start=_FIRST_WINDOW))
        self.on_queue_full: Callable[[], None] = lambda: None
        self._links = [ServerLink(address, self._changed) for _ in range(num_connections)]
        self._connected = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether questions can be asked now."""
        return self._connected.is_set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the connections open as long as the block runs."""
        async with contextlib.AsyncExitStack() as stack:
            for link in self._links:
                await stack.enter_async_context(link.kept_open())
            yield

    async def check(self) -> None:
        """Waits for the first connection.

        Raises:
            QaClientError: It cannot be made.
        """
        await asyncio.gather(*(link.settled() for link in self._links))
        if error := next((link.last_error for link in self._links if link.last_error), None):
            raise error

    async def connected(self) -> None:
        """Waits until questions can be asked."""
        await self._connected.wait()

    async def ask(self, request: Request, order: int, deadline_s: float | None = None) -> Reply:
        """Asks until there is an answer, or an error that asking again at once cannot mend.

        Args:
            request: What is asked.
            order: Of those who wait to ask, the lowest is first.
            deadline_s: After which an answer is of no use, `time.monotonic`; None for never.

        Raises:
            QaServerError: The server's error, or `ExpiredError`.
            ConnectionLostError: The question lost too many connections.
            StoppedError: The window was stopped before the question was asked.
        """
        losses = 0
        while True:
            await self.window.enter(order)
            try:
                return await self._ask_once(request, deadline_s)
            except ConnectionLostError:
                losses += 1
                if losses >= MAX_LOSSES:
                    raise
            except _QueueFullError:
                self.on_queue_full()
            finally:
                self.window.leave()

    async def _ask_once(self, request: Request, deadline_s: float | None) -> Reply:
        limit = self.window.limit
        epoch = limit.epoch
        link = min(self._links, key=lambda link: (not link.is_connected, link.in_flight))
        try:
            reply = await link.ask(request, _timeout_ms(request, deadline_s))
        except QaServerError as error:
            if error.code == "queue_full":
                limit.refused(epoch)
                self.window.pause((error.retry_after_ms or 1000.0) / 1e3)
                raise _QueueFullError from error
            if error.code in _OF_THE_SERVER:
                self.window.pause(RETRY_PAUSE_S)
            raise
        limit.answered()
        return reply

    def _changed(self) -> None:
        is_connected = any(link.is_connected for link in self._links)
        (self._connected.set if is_connected else self._connected.clear)()
        self.window.set_open(is_connected)


class _QueueFullError(QaClientError):
    """The server has no room at present."""


def _timeout_ms(request: Request, deadline_s: float | None) -> float | None:
    """How long the question may wait in the server's queue.

    Raises:
        ExpiredError: Not at all.
    """
    if deadline_s is None:
        return request.timeout_ms
    left_ms = (deadline_s - time.monotonic()) * 1e3
    if left_ms <= 0:
        raise ExpiredError
    return min(left_ms, request.timeout_ms or left_ms)
