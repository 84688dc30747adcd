"""Files that are read while the loop runs: in threads, since a mount may hang.

A reading that hangs is waited for; another may begin meanwhile, and the latest to begin counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import overdue_s

HANGS_AFTER_S = 10.0
"""They are small files: seconds on a slow mount."""
MAX_READINGS = 4
"""At a time, all but one of which hang."""

T = TypeVar("T")


class Readings(Generic[T]):
    """Readings of the same files.

    Args:
        on_fault: Called with one of the two reasons below.
        too_many: Why none begins while `MAX_READINGS` of them hang.
        hanging: Why nothing is new `HANGS_AFTER_S` after the latest has begun.
    """

    def __init__(
        self, loop: EventLoop, on_fault: Callable[[str], None], *, too_many: str, hanging: str
    ) -> None:
        self._loop = loop
        self._on_fault = on_fault
        self._too_many = too_many
        self._hanging = hanging
        self._running: set[object] = set()
        self._latest: object = None

    @property
    def is_running(self) -> bool:
        """Whether the latest has not ended."""
        return self._latest in self._running

    def start(self, read: Callable[[], T], on_read: Callable[[T | Exception], None]) -> None:
        """Begins to read; calls back with the result or error, unless another has begun."""
        if len(self._running) >= MAX_READINGS:
            self._on_fault(self._too_many)
            return
        reading = self._latest = object()
        self._running.add(reading)
        self._loop.run_in_thread(read, partial(self._on_end, reading, on_read))
        self._report_if_hanging(reading, self._loop.now_s())

    def _on_end(
        self, reading: object, on_read: Callable[[T | Exception], None], found: T | Exception
    ) -> None:
        self._running.discard(reading)
        if reading is self._latest:
            on_read(found)

    def _report_if_hanging(self, reading: object, since_s: float) -> None:
        """Looks again when the latest reading is overdue, and reports it if it is."""
        if reading is not self._latest or not self.is_running:
            return
        when_s = overdue_s(self._loop, since_s, HANGS_AFTER_S)
        if self._loop.now_s() >= when_s:
            self._on_fault(self._hanging)
        else:
            self._loop.call_at(when_s, partial(self._report_if_hanging, reading, since_s))
