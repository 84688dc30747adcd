"""A sidecar process: it starts and ends with the server, and is restarted if it dies.

    STOPPED ──start──▶ RUNNING ──dies──▶ WAITING (backoff) ──▶ RUNNING …
                          └──close──▶ ENDING (it sees end-of-file) ──reap──▶ ENDED

The program, which `start_program` starts, calls `end_with_parent(PARENT)` first, so that it does
not outlive a server that was killed.
"""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from qa_service.child_program import start_program
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.net.timers import Timer

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
"""Delay before the first restart."""
MAX_BACKOFF_S = 10.0
"""The longest delay: each start takes a core for a moment."""
STEADY_S = 30.0
"""A program that ran this long before it died is restarted after the first backoff."""


class SideProgram:
    """Starts a program, `python -m MODULE`, and restarts it with a backoff when it dies.

    Args:
        environment: Variables added to the server's.
        max_backoff_s: The longest wait before a restart.
        on_start: Called after each start; the program can then be written to.
        on_death: Called each time that it dies by itself.
    """

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        max_backoff_s: float = MAX_BACKOFF_S,
        on_start: Callable[[], None] = lambda: None,
        on_data: Callable[[bytes], None] = lambda data: None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._name = name
        self._module = module
        self._arguments = tuple(arguments)
        self._environment = environment
        self._max_backoff_s = max_backoff_s
        self._on_start = on_start
        self._on_data = on_data
        self._on_death = on_death
        self._stream: Stream | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._restart: Timer | None = None
        self._started_s = 0.0
        self._deaths_in_row = 0
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether it can be written to."""
        return self._stream is not None and self._stream.is_open

    @property
    def pid(self) -> int | None:
        """Its process id, also when it has died since; None before the first start."""
        return self._process.pid if self._process else None

    @property
    def output_bytes(self) -> int:
        """Bytes written to it that the kernel has not taken yet."""
        return self._stream.output_bytes if self._stream else 0

    def start(self) -> None:
        """Starts it; if that fails, tries again later."""
        self._started_s = self._loop.now_s()
        try:
            self._launch()
        except OSError as error:  # descriptors, memory or processes ran out, perhaps for a moment
            logger.error("%s cannot be started now: %s", self._name, error)
            self._start_later()
        else:
            self._on_start()

    def write(self, data: bytes | bytearray) -> None:
        """Sends it bytes, without waiting; ignored while it does not run."""
        if self._stream:
            self._stream.write(data)

    def close(self) -> None:
        """Sends what was written, then end-of-file, so that the program ends; it stays ended."""
        self._is_closed = True
        if self._restart:
            self._restart.cancel()
        if self._stream:
            self._stream.close_gently()

    def reap(self) -> bool:
        """Whether its process has ended."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """Ends it at once."""
        self.close()
        if self._stream:
            self._stream.close()
        if self._process:
            self._process.kill()

    def replace(self) -> None:
        """Kills it, as it hangs; another starts after the backoff."""
        if self.is_running and self._process and self._stream:
            self._process.kill()
            self._stream.close()  # its end may be long in coming: a disk holds it
            self._on_end()

    def _launch(self) -> None:
        self._process, sock = start_program(
            self._module, *self._arguments, environment=self._environment
        )
        self._stream = Stream(self._loop, sock)
        self._stream.start(self._on_data, self._on_end)

    def _on_end(self) -> None:
        if self._is_closed:
            return
        self._on_death()
        if self._loop.now_s() - self._started_s >= STEADY_S:
            self._deaths_in_row = 0
        self._start_later()

    def _start_later(self) -> None:
        backoff_s = min(FIRST_BACKOFF_S * 2 ** min(self._deaths_in_row, 10), self._max_backoff_s)
        self._deaths_in_row += 1
        self._restart = self._loop.call_at(self._loop.now_s() + backoff_s, self._start_again)

    def _start_again(self) -> None:
        if self._process:
            code = self._process.poll()
            if code is None:
                self._process.kill()  # it closed its descriptor, so it is of no more use
            logger.warning("%s %s; it starts again", self._name, _how(code))
        self.start()


def _how(code: int | None) -> str:
    if code is None:
        return "has closed its descriptor"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
