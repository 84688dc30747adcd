"""What several tests need: fake clocks, a loop run until a condition holds, checks of types."""

import importlib
import threading
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest

from harness.process import GIVE_UP_S as DEADLINE_S
from qa_service.net.event_loop import EventLoop

T = TypeVar("T")


class Lazy:
    """A module that is loaded when one of its names is used.

    PyTorch and what brings it take seconds, in each process that collects tests.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks in all that it finds
            raise AttributeError(name)
        return getattr(importlib.import_module(self._module), name)


WITHOUT_TORCH = "PyTorch is not installed: the extra models"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason=WITHOUT_TORCH)


def skip_without(package: str, reason: str) -> None:
    """Skips a test without a package that a program of it loads, and that takes long to load."""
    if find_spec(package) is None:
        pytest.skip(reason)


def present(value: T | None) -> T:
    assert value is not None
    return value


def all_of(kind: type[T], values: Iterable[object]) -> list[T]:
    """The values, each of which is of this kind."""
    checked = []
    for value in values:
        assert isinstance(value, kind), value
        checked.append(value)
    return checked


class FakeClock:
    """Stands in for the module `time`: its time passes when the test says."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def perf_counter(self) -> float:
        return self.time_s

    def pass_s(self, seconds: float) -> None:
        self.time_s += seconds


class WatchedClock(FakeClock):
    """One whose time passes no faster than somebody looks at it."""

    LOOKS = 20
    """More than a turn of the load generator takes."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = threading.Semaphore(0)

    def perf_counter(self) -> float:
        self._looks.release()
        return super().perf_counter()

    def pass_s(self, seconds: float) -> None:
        """Returns when whoever looks has done what was due."""
        super().pass_s(seconds)
        while self._looks.acquire(blocking=False):
            pass
        for _ in range(self.LOOKS):
            assert self._looks.acquire(timeout=DEADLINE_S), "nobody looks at the clock"


class FakeTimeLoop(EventLoop):
    """A loop with real sockets and a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__()

    def now_s(self) -> float:
        return self.clock.time_s


def run_until(loop: EventLoop, condition: Callable[..., bool]) -> None:
    """Runs the loop, round upon round, until the condition holds; fails if it never does."""
    give_up_s = time.monotonic() + DEADLINE_S
    held: list[bool] = []

    def check() -> None:
        if condition():
            held.append(True)
        if held or time.monotonic() > give_up_s:
            loop.stop()
        loop.call_soon(lambda: None)

    loop.call_soon(lambda: None)
    loop.after_each = check
    loop.run()
    assert held, "the condition never held"
