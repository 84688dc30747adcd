"""A program beside the loop: started with the server, started again if it dies, ended with it.

    STOPPED ──start──▶ RUNNING ──dies──▶ WAITING (backoff) ──▶ RUNNING …
                          └──close──▶ ENDING (it sees end-of-file) ──reap──▶ ENDED

Like an instance it is a plain program with one inherited descriptor, run as `python -m MODULE FD
PARENT …`: bytes go both ways over it, and end-of-file means that the other side is gone. It calls
`end_with_parent(PARENT)` first, so that it does not outlive a server that was killed.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.net.timers import Timer
from qa_service.workers.process import python_path

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
STEADY_S = 30.0
"""Who has run for so long is started again after the first backoff."""


class SideProgram:
    """Starts a program, and starts it again with a backoff when it dies.

    Args:
        loop: The server's loop.
        name: What the log calls it.
        module: What `python -m` runs.
        arguments: Its arguments after the descriptor's number and the server's process id.
        environment: What its environment has beside the server's.
        on_start: Called each time that it has been started, and can be written to.
        on_data: Takes the bytes that it sends.
        on_death: Called each time that it has died by itself.

    Attributes:
        restarts_total: How often it was started again.
    """

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        on_start: Callable[[], None] = lambda: None,
        on_data: Callable[[bytes], None] = lambda data: None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.restarts_total = 0
        self._loop = loop
        self._name = name
        self._command = (sys.executable, "-m", module)
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
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
        """Starts it; if that cannot be done now, it is tried again."""
        self._started_s = self._loop.now_s()
        try:
            self._launch()
        except OSError as error:  # of descriptors, memory or processes, and they may come back
            logger.error("%s cannot be started now: %s", self._name, error)
            self._start_later()
        else:
            self._on_start()

    def write(self, data: bytes | bytearray) -> None:
        """Sends it bytes, without waiting; ignored while it does not run."""
        if self._stream:
            self._stream.write(data)

    def close(self) -> None:
        """Sends it what has been written, then end-of-file, so that it ends; it stays ended."""
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

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno()), str(os.getpid()), *self._arguments],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": python_path(), **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,
                    start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
                )
            except OSError:
                ours.close()
                raise
        self._stream = Stream(self._loop, ours)
        self._stream.start(self._on_data, self._on_end)

    def _on_end(self) -> None:
        if self._is_closed:
            return
        self._on_death()
        if self._loop.now_s() - self._started_s >= STEADY_S:
            self._deaths_in_row = 0
        self._start_later()

    def _start_later(self) -> None:
        backoff_s = min(FIRST_BACKOFF_S * 2**self._deaths_in_row, MAX_BACKOFF_S)
        self._deaths_in_row += 1
        self._restart = self._loop.call_at(self._loop.now_s() + backoff_s, self._start_again)

    def _start_again(self) -> None:
        if self._process:
            code = self._process.poll()
            if code is None:
                self._process.kill()  # what comes of it nobody waits for
            logger.warning("%s %s; it starts again", self._name, _how(code))
        self.restarts_total += 1
        self.start()


def _how(code: int | None) -> str:
    if code is None:
        return "has closed its descriptor"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
