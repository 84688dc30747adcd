"""Where the time of an instance's start goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_spent_s: Counter[str] = Counter()
_open: list[str] = []
_lap_s = 0.0


@contextmanager
def taking(step: str) -> Iterator[None]:
    """Adds a block's time to a step of this process's start, less that of steps within it."""
    _lap()
    _open.append(step)
    try:
        yield
    finally:
        _lap()
        _open.pop()


def _lap() -> None:
    global _lap_s
    now_s = time.monotonic()
    if _open:
        _spent_s[_open[-1]] += now_s - _lap_s
    _lap_s = now_s


def describe_start(took_s: float) -> str:
    """The steps so far, the longest first, and what none of them took, as in `weights 1.2 s`."""
    others_s = max(0.0, took_s - sum(_spent_s.values()))
    steps = [*_spent_s.most_common(), ("the rest", others_s)]
    return ", ".join(f"{step} {spent_s:.1f} s" for step, spent_s in steps)
