"""Timers: callbacks that are due at a time. Sans-IO: the loop passes the time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Protocol

Callback = Callable[[], object]

MIN_SWEEP = 64
"""Cancelled timers that even a small heap may hold, so that it is seldom rebuilt."""


class Timer:
    """A callback that is due at a time, and can be cancelled."""

    __slots__ = ("_on_cancel", "callback")

    def __init__(self, callback: Callback, on_cancel: Callback) -> None:
        self.callback: Callback | None = callback
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        """Drops the callback; harmless after it has run."""
        if self.callback is not None:
            self.callback = None
            self._on_cancel()


class Clock(Protocol):
    """The clock and its callbacks: the event loop, or a test's fake.

    Attributes:
        last_pause_s: When the last pause of the process ended: it had stood still, so that no time
            that began before is a measurement.
    """

    last_pause_s: float

    def now_s(self) -> float: ...

    def call_at(self, when_s: float, callback: Callback) -> Timer: ...

    def call_soon(self, callback: Callback) -> None:
        """Calls back once, in the next round."""

    def mark(self) -> None:
        """Says that something has changed."""


def overdue_s(clock: Clock, since_s: float, timeout_s: float) -> float:
    """When work that began at `since_s` is overdue; what a pause has taken is given back."""
    return max(since_s, clock.last_pause_s) + timeout_s


class TimerQueue:
    """Timers in the order in which they are due."""

    def __init__(self) -> None:
        self._items: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def add(self, when_s: float, callback: Callback) -> Timer:
        timer = Timer(callback, self._count_cancelled)
        heapq.heappush(self._items, (when_s, next(self._numbers), timer))
        return timer

    def next_due_s(self) -> float:
        """When the next one is due; infinity without any."""
        while self._items and self._items[0][2].callback is None:
            heapq.heappop(self._items)
            self._cancelled -= 1
        return self._items[0][0] if self._items else math.inf

    def pop_due(self, now_s: float) -> Callback | None:
        """Takes out the next callback that is due; None if none is."""
        while self._items and self._items[0][0] <= now_s:
            timer = heapq.heappop(self._items)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                return callback
            self._cancelled -= 1
        return None

    def _count_cancelled(self) -> None:
        """Removes the cancelled timers once they are half of the heap, as asyncio does."""
        self._cancelled += 1
        if self._cancelled > max(MIN_SWEEP, len(self._items) // 2):
            self._items = [item for item in self._items if item[2].callback is not None]
            heapq.heapify(self._items)
            self._cancelled = 0


class LazyTimer:
    """A timer for a deadline that mostly moves later; it may be early, and is never late.

    Moving the deadline later costs nothing: an early callback arms the timer again.
    """

    def __init__(self, clock: Clock, callback: Callback) -> None:
        self._clock = clock
        self._callback = callback
        self._armed_s = math.inf
        self._timer: Timer | None = None

    def arm(self, when_s: float) -> None:
        """Calls back at that time or before."""
        if when_s < self._armed_s:
            self.cancel()
            self._armed_s = when_s
            self._timer = self._clock.call_at(when_s, self._due)

    def cancel(self) -> None:
        """Does not call back until it is armed again."""
        self._armed_s = math.inf
        if self._timer:
            self._timer.cancel()

    def _due(self) -> None:
        self._armed_s = math.inf
        self._callback()
