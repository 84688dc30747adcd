"""A few threads for what would hold up the loop.

The work must not touch what the loop uses; its result comes back to the loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

Work = Callable[[], object]
Done = Callable[[object], None]
"""Takes the work's result, or the exception that it has raised."""


class ThreadedLoop(Protocol):
    """What the thread needs of the loop."""

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Calls back in the loop's next round."""


class Background:
    """Runs work in threads, which are started with the first.

    Args:
        loop: Where the results go.
        num_threads: How much is done at a time: one piece that waits does not hold up the others.
    """

    def __init__(self, loop: ThreadedLoop, num_threads: int = 4) -> None:
        self._loop = loop
        self._num_threads = num_threads
        self._queue: queue.SimpleQueue[tuple[Work, Done]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, work: Work, done: Done) -> None:
        """Has work done, and calls `done` from the loop."""
        while len(self._threads) < self._num_threads:
            # A daemon: it ends with the process, even if what it is at hangs.
            thread = threading.Thread(target=self._work, name="background", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((work, done))

    def _work(self) -> None:
        while True:
            work, done = self._queue.get()
            self._loop.call_from_thread(partial(done, result_of(work)))


def result_of(work: Work) -> object:
    """Does work; returns its result, or the exception that it has raised."""
    try:
        return work()
    except Exception as error:
        return error
