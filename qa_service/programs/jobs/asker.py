"""Asks as many questions as the server takes; for the gateway and `jobs.py run`.

reply                               action
an answer                           returned; the window may grow
queue_full                          asked again, at most MAX_REFUSALS times; the window halves
a lost connection                   asked again when there is one, at most MAX_LOSSES times
shutting_down, unavailable          raised; nobody asks for RETRY_PAUSE_S
any other error                     raised

A question that failed too often raises its last error. A refused question waits longer each time
while others are asked: the fault may be the question's and not the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable

from qa_service.aio.link import ServerLink
from qa_service.client import ConnectionLostError, QaClientError, QaServerError
from qa_service.programs.jobs.job import JobRequest, Reply, encode_request, read_reply
from qa_service.programs.jobs.jobs_options import AskingOptions

MAX_LOSSES = 10
"""Connections that a question may lose before it is suspected of breaking them."""
MAX_REFUSALS = 30
"""How often the server may have no room for a question: with the pauses, over three minutes."""
FIRST_REST_S, LAST_REST_S = 0.01, 10.0
"""What a question waits after its first refusal; doubled by each further one, up to the last."""
RETRY_PAUSE_S = 1.0
"""A server that starts or ends does so for seconds."""
_LONGEST_PAUSE_S = 30.0
"""A server may name a longer one, and have room before that is over."""
_OF_THE_SERVER = {"shutting_down", "unavailable"}
_FIRST_WINDOW = 16
"""Enough to keep an instance busy at once; a window that is too large halves soon."""
_DECREASE = 0.5
"""As in RFC 5681, 3.1."""


class ExpiredError(QaServerError):
    def __init__(self) -> None:
        super().__init__("deadline_exceeded", "the job expired before it was answered")


class Asker:
    """Asks questions over one or more connections, as many at a time as the window allows.

    It calls `on_queue_full` when the server has no room for a question.

    Raises:
        QaClientError: A TLS file cannot be used.
    """

    def __init__(self, options: AskingOptions) -> None:
        self.window = Window(AdaptiveLimit(options.prefetch, start=_FIRST_WINDOW))
        self.on_queue_full: Callable[[], None] = lambda: None
        terms = options.access.terms(options.timeout_s)
        self._links = [
            ServerLink(options.host, options.port, terms, self._changed, options.max_frame_bytes)
            for _ in range(options.num_connections)
        ]
        self._connected, self._disconnected = asyncio.Event(), asyncio.Event()
        self._disconnected.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the connections open as long as the block runs."""
        async with contextlib.AsyncExitStack() as stack:
            for link in self._links:
                await stack.enter_async_context(link.kept_open())
            yield

    async def check(self) -> None:
        """Waits for the first connection; raises the error if there is none."""
        await asyncio.gather(*(link.settled() for link in self._links))
        if error := self._last_error():
            raise error

    async def connected(self) -> None:
        await self._connected.wait()

    async def lost_for(self, duration_s: float) -> None:
        """Raises the last attempt's error after a time without a connection; does not return."""
        while True:
            await self._disconnected.wait()
            try:
                await asyncio.wait_for(self._connected.wait(), duration_s)
            except TimeoutError:
                words = f"the server has been away for {duration_s:g} s"
                raise self._last_error() or ConnectionLostError(words) from None

    async def ask(self, request: JobRequest, order: int, deadline_s: float | None = None) -> Reply:
        """Asks until there is an answer, or an error that asking again at once cannot cure.

        Args:
            order: Among waiting questions, the lowest goes first.
            deadline_s: `time.monotonic` after which an answer is useless; None for never.

        Raises:
            QaServerError: The server's error, or `ExpiredError`.
            ConnectionLostError: The question lost too many connections.
            StoppedError: The window was stopped before the question was asked.
        """
        losses = refusals = 0
        while True:
            await self.window.enter(order)
            try:
                return await self._ask_once(request, deadline_s)
            except ConnectionLostError:
                losses += 1
                if losses >= MAX_LOSSES:
                    raise
            except QaServerError as error:
                if error.code != "queue_full":
                    raise
                self.on_queue_full()
                refusals += 1
                if refusals >= MAX_REFUSALS:
                    raise
            finally:
                self.window.leave()
            if refusals:
                await self.window.rest(min(FIRST_REST_S * 2 ** (refusals - 1), LAST_REST_S))

    async def _ask_once(self, request: JobRequest, deadline_s: float | None) -> Reply:
        limit, timeout_ms = self.window.limit, request.get("timeout_ms")
        epoch = limit.epoch
        link = min(self._links, key=lambda link: (not link.is_connected, link.in_flight))
        if deadline_s is not None:
            left_ms = (deadline_s - time.monotonic()) * 1e3
            if left_ms <= 0:
                raise ExpiredError
            timeout_ms = min(left_ms, timeout_ms or left_ms)
        try:
            reply = await link.ask(lambda i: encode_request(request, i, timeout_ms), read_reply)
            if isinstance(reply, QaServerError):
                raise reply
        except QaServerError as error:
            if error.code == "queue_full":
                limit.refused(epoch)
                pause_s = (error.retry_after_ms or 1000.0) / 1e3
                self.window.pause(min(pause_s, _LONGEST_PAUSE_S))
            elif error.code in _OF_THE_SERVER:
                self.window.pause(RETRY_PAUSE_S)
            raise
        limit.answered()
        return reply

    def _last_error(self) -> QaClientError | None:
        return next((link.last_error for link in self._links if link.last_error), None)

    def _changed(self) -> None:
        is_connected = any(link.is_connected for link in self._links)
        if is_connected:
            self._connected.set()
            self._disconnected.clear()
        else:
            self._connected.clear()
            self._disconnected.set()
        self.window.set_open(is_connected)


class AdaptiveLimit:
    """How many questions may be in flight: as many as the server takes, and no more.

    Additive increase, multiplicative decrease (Chiu and Jain 1989), as TCP has it (RFC 5681):

        event                               limit
        an answer, before any refusal       + 1             doubles each round trip (slow start)
        an answer                           + 1 / limit     one more each round trip
        a refusal (`queue_full`)            / 2             once for all that was asked before it

    and `1 <= limit <= most` at any time. `epoch` is how often it was decreased, noted when a
    question is asked.
    """

    def __init__(self, most: int, start: int = 1) -> None:
        self.most = most
        self.value = float(min(start, most))
        self.epoch = 0
        self._slow_start_until = float(most)

    def answered(self) -> None:
        """The server had room."""
        in_slow_start = self.value < self._slow_start_until
        step = 1.0 if in_slow_start else 1.0 / self.value
        self.value = min(self.value + step, float(self.most))

    def refused(self, epoch: int) -> None:
        """The server had no room for a question that was asked in this epoch."""
        if epoch == self.epoch:
            self.epoch += 1
            self.value = max(1.0, self.value * _DECREASE)
            self._slow_start_until = self.value


class StoppedError(Exception):
    """No further job is admitted."""


class Window:
    """Admits questions while there is room; the others wait. It begins shut."""

    def __init__(self, limit: AdaptiveLimit) -> None:
        self.limit = limit
        self.in_flight = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ties = itertools.count()
        self._resume: asyncio.TimerHandle | None = None
        self._is_open = False
        self._stopped = asyncio.Event()

    async def enter(self, order: int) -> None:
        """Waits for room, the lowest `order` first; `StoppedError` if `stop` was called."""
        if self._stopped.is_set():
            raise StoppedError
        if self._has_room() and not self._waiting:
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._ties), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was admitted, and then cancelled
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def set_open(self, is_open: bool) -> None:
        self._is_open = is_open
        self._admit()

    def pause(self, duration_s: float) -> None:
        """Admits no job for a time; a longer pause stays as it is."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_s
        if self._resume is not None:
            if self._resume.when() >= until_s:
                return
            self._resume.cancel()
        self._resume = loop.call_at(until_s, self._end_pause)

    async def rest(self, duration_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), duration_s)

    def stop(self) -> None:
        """Makes `enter` raise `StoppedError`, for those who wait too."""
        self._stopped.set()
        for _, _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(StoppedError())
        self._waiting.clear()

    def _end_pause(self) -> None:
        self._resume = None
        self._admit()

    def _has_room(self) -> bool:
        is_shut = self._resume is not None or not self._is_open
        return not is_shut and self.in_flight < int(self.limit.value)

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
