"""How many questions may be in flight: as many as the server takes, and no more.

Additive increase, multiplicative decrease (Chiu and Jain 1989), as TCP has it (RFC 5681):

    event                               limit
    an answer, before any refusal       + 1             doubles each round trip (slow start)
    an answer                           + 1 / limit     one more each round trip
    a refusal (`queue_full`)            / 2             once for all that was asked before it

and `1 <= limit <= most` at any time. `AdaptiveLimit` is the arithmetic; `Window` admits askers in
their order, and none while it is shut or paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools

_DECREASE = 0.5
"""As in RFC 5681, 3.1."""


class AdaptiveLimit:
    """The limit; `epoch` is how often it was decreased, noted when a question is asked."""

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
