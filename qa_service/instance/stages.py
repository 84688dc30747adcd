"""Where the time goes: of an instance's start, and of each of its batches."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec


class StagesMs(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds by stage.

    Attributes:
        tokenize: Questions and texts to windows of tokens.
        model: Padding the windows and running the model.
        read: Answers from the model's logits.
        lock: Of the instance's own work in these stages, the time without a core: it waited for the
            interpreter's lock or for a core.
    """

    tokenize: float = 0.0
    model: float = 0.0
    read: float = 0.0
    lock: float = 0.0


class Stopwatch:
    """Adds up the time of stages that follow each other, until it is taken.

    A stage is started and ended in one thread.
    """

    def __init__(self) -> None:
        self._stages_s: dict[str, float] = {}
        self._lap_s = self._lap_cpu_s = 0.0

    def start(self) -> None:
        self._lap_s, self._lap_cpu_s = time.monotonic(), time.thread_time()

    def lap(self, stage: Literal["tokenize", "model", "read"], *, is_own: bool = True) -> None:
        """Ends a stage and starts the next.

        Args:
            is_own: Whether this thread alone has done its work, so that the time in which it had no
                core is time that it waited for one, or for the interpreter's lock.
        """
        now_s, cpu_s = time.monotonic(), time.thread_time()
        took_s = now_s - self._lap_s
        self._add(stage, took_s)
        if is_own:
            self._add("lock", max(0.0, took_s - (cpu_s - self._lap_cpu_s)))
        self._lap_s, self._lap_cpu_s = now_s, cpu_s

    def _add(self, name: str, took_s: float) -> None:
        self._stages_s[name] = self._stages_s.get(name, 0.0) + took_s

    def take(self) -> StagesMs:
        """Returns the times and resets them to zero."""
        stages_s, self._stages_s = self._stages_s, {}
        return StagesMs(**{stage: round(s * 1e3, 3) for stage, s in stages_s.items()})


class Holding:
    """How long an instance held no batch: it waited for work. Its threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_held = 0
        self._empty_s = time.monotonic()
        self._waited_s = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._num_held:
                self._waited_s += time.monotonic() - self._empty_s
            self._num_held += 1

    def end(self) -> None:
        with self._lock:
            self._num_held -= 1
            self._empty_s = time.monotonic()

    def take_ms(self) -> float:
        """Returns how long it waited and resets that to zero."""
        with self._lock:
            waited_s, self._waited_s = self._waited_s, 0.0
        return round(waited_s * 1e3, 3)


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
