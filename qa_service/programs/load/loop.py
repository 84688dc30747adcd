"""The load generator's loop: sockets and timers in one thread, precise to some 0.1 ms.

`epoll` waits in whole milliseconds, longer than a quick server takes. So the loop waits with
`select` on the epoll's own descriptor, whose timeout is in microseconds.
"""

from __future__ import annotations

import heapq
import itertools
import select
import selectors
import time
from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


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
        """Forgets all sockets and timers."""
        self._selector.close()
        self._timers.clear()
