"""Where the time of an instance's start goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StartTimes:
    """The steps of this process's start; a step's time is without that of steps within it."""

    def __init__(self) -> None:
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._lap_s = 0.0

    @contextmanager
    def taking(self, step: str) -> Iterator[None]:
        self._lap()
        self._open.append(step)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def describe(self, took_s: float) -> str:
        """The steps so far, the longest first, and the rest, as in `weights 1.2 s, the rest 0.1 s`.

        Args:
            took_s: All of the start.
        """
        rest_s = max(0.0, took_s - sum(self._spent_s.values()))
        steps = [*sorted(self._spent_s.items(), key=lambda one: -one[1]), ("the rest", rest_s)]
        return ", ".join(f"{step} {spent_s:.1f} s" for step, spent_s in steps)

    def _lap(self) -> None:
        now_s = time.monotonic()
        if self._open:
            self._spent_s[self._open[-1]] += now_s - self._lap_s
        self._lap_s = now_s


START = StartTimes()
taking = START.taking
