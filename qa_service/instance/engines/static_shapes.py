"""Compiles a model for single rows of the lengths that occur often, one model a length.

An engine with dynamic shapes runs any length. Where the shape is known, OpenVINO fuses more
operators, and has nothing to set up between runs. Compiling takes as long as tens of questions: a
thread of the lowest priority does it, and the engine runs its dynamic model until it is done.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from qa_service.instance.memory import resident_bytes, return_free_memory

logger = logging.getLogger(__name__)

OFTEN = 16
"""Runs of a length before it is compiled: more than measuring a cost table makes of any length, and
few beside the hundred after which a seventh of a run's time has paid for compiling."""

LOWEST_PRIORITY = 19
"""As a nice value; beside a worker's 10, the thread then has an eighth of a core."""

Compiled = TypeVar("Compiled")


class StaticShapes(Generic[Compiled]):
    """The lengths that are compiled, and how often the others ran.

    A length is compiled if it will fit into what is left of `max_bytes`, as far as is known: it
    takes what the last one took, the first `first_bytes`. What then took more is dropped. After
    that, or if a length cannot be compiled or does not pass `check`, no more are.

    Attributes:
        check: Looks at what was compiled for a length, before it is used; raises an exception.
    """

    def __init__(
        self,
        compile_for: Callable[[int], Compiled],
        max_bytes: int,
        first_bytes: int = 0,
        *,
        memory_bytes: Callable[[], int] = resident_bytes,
    ) -> None:
        self.check: Callable[[Compiled, int], object] | None = None
        self._compile_for = compile_for
        self._left_bytes = max_bytes
        self._next_bytes = max(1, first_bytes)
        self._memory_bytes = memory_bytes
        self._num_runs: Counter[int] = Counter()
        self._compiled: dict[int, Compiled] = {}
        self._thread = threading.Thread()

    def find(self, tokens: int) -> Compiled | None:
        """What is compiled for a row that is about to run; None if that is nothing yet."""
        # Asked before `_compiled`, so that a length which is done just now is not compiled again.
        is_free = not self._thread.is_alive()
        found = self._compiled.get(tokens)
        if found is None and self._left_bytes >= self._next_bytes:
            self._num_runs[tokens] += 1
            if is_free and self._num_runs[tokens] >= OFTEN:
                self._thread = threading.Thread(target=self._add, args=(tokens,))
                self._thread.start()
        return found

    def wait(self) -> None:
        """Waits until a length that is being compiled is done."""
        if self._thread.is_alive():
            self._thread.join()

    def _add(self, tokens: int) -> None:
        """Compiles a length, in the thread, which gives way to questions."""
        # On Linux each thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        before_bytes, started_s = self._memory_bytes(), time.monotonic()
        try:
            compiled = self._compile_for(tokens)
            if self.check:
                self.check(compiled, tokens)
        except Exception:
            logger.exception("%d tokens cannot be compiled; other lengths will not be", tokens)
            self._left_bytes = 0
            return
        return_free_memory()
        taken_bytes = max(0, self._memory_bytes() - before_bytes)
        took_s = time.monotonic() - started_s
        logger.debug(
            "compiled the model for %d tokens: %.2f s, %d bytes", tokens, took_s, taken_bytes
        )
        if taken_bytes > self._left_bytes:
            del compiled
            return_free_memory()
            self._left_bytes = 0
            return
        self._left_bytes -= taken_bytes
        self._next_bytes = max(1, taken_bytes)
        self._compiled[tokens] = compiled
