"""Compiles a model for single rows of the lengths that occur often, one model a length.

An engine with dynamic shapes runs any length. Where the shape is known, OpenVINO fuses more
operators, and has nothing to set up between runs. Compiling takes as long as tens of questions, and
loading as long as several. So no start and no question waits for it: a thread of the lowest
priority makes one length after another while the instance serves, those that were seen most first,
and the engine runs its dynamic model until they are done.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from qa_service.instance.model_folder.costs_dir import SeenLengths
from qa_service.machine import available_bytes, own_bytes, return_free_memory

logger = logging.getLogger(__name__)

OFTEN = 16
"""Runs of a length before it is compiled: more than measuring a cost table makes of any length, and
few compared with the hundred after which a seventh of a run's time has paid for compiling."""

RESERVE_BYTES = 2**29
"""What the machine, or a container, keeps for other programs and for an instance's replacement."""

LOWEST_PRIORITY = 19
"""As a nice value; with a worker at 10, the thread then has an eighth of a core."""

Compiled = TypeVar("Compiled")


class StaticShapes(Generic[Compiled]):
    """The lengths that are compiled, and how often rows of each length ran.

    A length is compiled if it will fit into what is left of `max_bytes`, as far as is known: it
    takes what the last one took, the first `first_bytes`. What then took more is dropped. After
    that, or if a length cannot be compiled, or the machine has little memory left, no more are.
    What does not pass `check` is not used.

    Args:
        is_in_the_making: Whether another instance compiles a length now: its turn is later, since
            to load it takes less time.

    Attributes:
        check: Looks at what was made for a length, before it is used; raises an exception.
        left_bytes: The memory that further lengths may take.
    """

    def __init__(
        self,
        compile_for: Callable[[int], Compiled],
        max_bytes: int,
        first_bytes: int = 0,
        *,
        is_in_the_making: Callable[[int], bool] = lambda _tokens: False,
        memory_bytes: Callable[[], int] = own_bytes,
        available_bytes: Callable[[], int] = available_bytes,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check: Callable[[Compiled, int], object] | None = None
        self.left_bytes = max_bytes
        self._compile_for = compile_for
        self._is_in_the_making = is_in_the_making
        self._next_bytes = max(1, first_bytes)
        self._memory_bytes = memory_bytes
        self._available_bytes = available_bytes
        self._clock_s = clock_s
        self._seen = SeenLengths()
        self._compiled: dict[int, Compiled] = {}
        self._refused: set[int] = set()
        self._thread = threading.Thread()

    @property
    def lengths(self) -> list[int]:
        return sorted(self._compiled.copy())  # at once: the thread may be adding one

    def prepare(self, seen: SeenLengths) -> None:
        """Begins with the lengths that were seen often; `seen` counts what runs from now on."""
        self._seen = seen
        if self._next():
            self._start()

    def find(self, tokens: int) -> Compiled | None:
        """What is compiled for a row that is about to run; None if that is nothing yet."""
        num_runs = self._seen.count(tokens)
        found = self._compiled.get(tokens)
        is_wanted = found is None and num_runs >= OFTEN and tokens not in self._refused
        if is_wanted and self._has_room and not self._thread.is_alive():
            self._start()
        return found

    def wait(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    @property
    def _has_room(self) -> bool:
        return self.left_bytes >= self._next_bytes

    def _next(self) -> int | None:
        """The length to be compiled next; None if there is none, or no room for it."""
        if not self._has_room:
            return None
        often = self._seen.most_seen(OFTEN)
        done = self._refused | self._compiled.keys()
        left = [tokens for tokens in often if tokens not in done]
        free = (tokens for tokens in left if not self._is_in_the_making(tokens))
        return next(free, next(iter(left), None))

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="static shapes", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Compiles lengths until there is no more, in the thread, which gives way to questions."""
        # On Linux each thread has a separate priority.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        while tokens := self._next():
            available = self._available_bytes()
            if available < self._next_bytes + RESERVE_BYTES:
                logger.info("no further length is compiled: %d bytes are available", available)
                self.left_bytes = 0
                return
            self._add(tokens)

    def _add(self, tokens: int) -> None:
        before_bytes, started_s = self._memory_bytes(), self._clock_s()
        try:
            compiled = self._compile_for(tokens)
        except Exception:
            logger.exception("%d tokens cannot be compiled; other lengths will not be", tokens)
            self.left_bytes = 0
            return
        try:
            if self.check:
                self.check(compiled, tokens)
        except Exception as error:
            logger.error("what is compiled for %d tokens is not used: %s", tokens, error)
            self._refused.add(tokens)
            return
        return_free_memory()
        taken_bytes = max(0, self._memory_bytes() - before_bytes)
        took_s = self._clock_s() - started_s
        logger.debug(
            "compiled the model for %d tokens: %.2f s, %d bytes", tokens, took_s, taken_bytes
        )
        if taken_bytes > self.left_bytes:
            del compiled
            return_free_memory()
            self.left_bytes = 0
            return
        self.left_bytes -= taken_bytes
        self._next_bytes = max(1, taken_bytes)
        self._compiled[tokens] = compiled
