"""A program that the loop starts, talks to and ends, whatever it is for.

    STOPPED ──start──▶ RUNNING ──its channel ends, or `end`──▶ DEAD ──start_later──▶ RUNNING …
                          └──close (it sees end-of-file), kill──▶ STOPPED

End-of-file on its channel is its death: `on_end`, at once. The process may take longer to end; it
is polled, since no event announces that, and killed when its time is over. So a child that has been
started again may still have earlier processes. The loop is marked when one of them is gone.

What a child is at, and until when, is said by `expect` and `done`. A child that is late is killed.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.errors import FrameTooLargeError
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.net.timers import Callback, LazyTimer, Timer, overdue_s
from qa_service.wire.frames import FrameReader

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
"""The delay before the first restart; each next one is twice as long. By then a process whose
channel has ended has ended too."""
MAX_BACKOFF_S = 10.0
"""Each start takes a core for a moment: a program that always dies leaves it to the others."""
STEADY_S = 30.0
"""A program that ran this long before it died starts again after the first backoff."""
REAP_INTERVAL_S = 0.1
EXIT_S = 5.0
"""How long a process may take to end by itself once its channel has ended."""

_OWN_SIGNALS = {
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP),
}
"""What a program's own fault raises; any other signal is sent by somebody: a person, the kernel
short of memory, a supervisor."""


Launch = Callable[[], tuple[subprocess.Popen[bytes], socket.socket]]
"""Starts a process; returns it, and this end of its channel."""


class _Run(msgspec.Struct, eq=False):
    """One process of a child.

    Attributes:
        kill_s: When it is killed, as it does not end; infinity before its channel has ended.
        is_ended_here: Whether it was closed or killed by this side.
    """

    process: subprocess.Popen[bytes]
    stream: Stream
    kill_s: float = math.inf
    is_ended_here: bool = False
    on_exit: list[Callback] = msgspec.field(default_factory=list)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.is_ended_here = True
            self.process.kill()


def _ignore(*_: object) -> None:
    pass


@dataclass(eq=False)
class Child:
    """A supervised program.

    Args:
        name: For the log.
        on_data: Takes what it sends: a frame's body, or bytes if there are no frames.
        max_frame_bytes: Of what it sends; 0 for bytes without frames.
        on_start: Called after each start; it can be written to.
        on_end: Called when it has died; not after `close` or `kill`.
        on_late: Takes what it is late with, before it is killed.
        drain_timeout_s: How long it may take to end once it is closed.
        has_end: Whether it ends by itself when its work is done.

    Attributes:
        failure: Why this side has ended it; empty if it has not.
        deaths_in_row: What the backoff counts; a user may set it to 0.
    """

    loop: EventLoop
    name: str
    launch: Launch
    on_data: Callable[[bytes], None] = _ignore
    max_frame_bytes: int = 0
    on_start: Callable[[], object] = _ignore
    on_end: Callable[[], object] = _ignore
    on_late: Callable[[Sequence[object]], object] = _ignore
    max_backoff_s: float = MAX_BACKOFF_S
    drain_timeout_s: float = math.inf
    has_end: bool = False

    def __post_init__(self) -> None:
        self.failure = ""
        self.deaths_in_row = 0
        self._run: _Run | None = None
        """The latest process."""
        self._ending: list[_Run] = []
        self._started_s = -math.inf
        self._restart: Timer | None = None
        self._reaping = LazyTimer(self.loop, self._reap_ending)
        self._doing: dict[object, tuple[float, float]] = {}
        self._late = LazyTimer(self.loop, self._look_for_late)

    # What it is.

    @property
    def is_running(self) -> bool:
        """Whether it can be written to."""
        return self._run is not None and self._run.stream.is_open

    @property
    def is_waiting(self) -> bool:
        """Whether it starts again after its backoff."""
        return self._restart is not None and self._restart.callback is not None

    @property
    def num_processes(self) -> int:
        """How many processes it has, those that are ending included."""
        return len(self._ending) + self.is_running

    @property
    def pid(self) -> int | None:
        return self._run.process.pid if self._run else None

    @property
    def output_bytes(self) -> int:
        """Bytes written to it that the kernel has not taken yet."""
        return self._run.stream.output_bytes if self._run else 0

    @property
    def exit_code(self) -> int | None:
        """The latest process's, or minus its signal; None while it runs."""
        return self._run.process.poll() if self._run else None

    @property
    def status(self) -> str:
        """How the latest process ended; empty while it runs."""
        return how_it_ended(self.exit_code)

    @property
    def was_killed(self) -> bool:
        """Whether a signal that nobody here sent has ended it; known once `status` is."""
        code = self.exit_code
        is_signal = code is not None and code < 0 and -code not in _OWN_SIGNALS
        return is_signal and self._run is not None and not self._run.is_ended_here

    # What is done with it.

    def start(self) -> None:
        """Starts it; raises `OSError` if it cannot be started."""
        if self._restart:
            self._restart.cancel()
        self._started_s = self.loop.now_s()
        self.failure = ""
        process, sock = self.launch()
        run = self._run = _Run(process, Stream(self.loop, sock))
        receive: Callable[[bytes], None] = self.on_data
        if self.max_frame_bytes:
            receive = partial(self._receive, run, FrameReader(self.max_frame_bytes))
        run.stream.start(receive, partial(self._on_stream_end, run))
        self.on_start()

    def try_start(self) -> None:
        """Starts it; if that fails, tries again after the backoff."""
        for run in self._ending:
            run.kill_s = min(run.kill_s, self.loop.now_s())
        self.reap()
        try:
            self.start()
        except OSError as error:  # descriptors, memory or processes ran out, perhaps for a moment
            logger.error("%s cannot be started now: %s", self.name, error)
            self.start_later()

    def start_later(self) -> None:
        now_s = self.loop.now_s()
        if now_s - self._started_s >= STEADY_S:
            self.deaths_in_row = 0
        backoff_s = min(FIRST_BACKOFF_S * 2 ** min(self.deaths_in_row, 10), self.max_backoff_s)
        self.deaths_in_row += 1
        logger.info("%s starts again in %.1f s", self.name, backoff_s)
        self._restart = self.loop.call_at(now_s + backoff_s, self.try_start)

    def write(self, data: bytes | bytearray) -> None:
        """Sends it bytes, without waiting; ignored while it does not run."""
        if self._run:
            self._run.stream.write(data)

    def expect(self, what: object, timeout_s: float, since_s: float | None = None) -> None:
        """Notes what it is at, since now or another time, and how long that may take."""
        since_s = self.loop.now_s() if since_s is None else since_s
        self._doing[what] = (since_s, timeout_s)
        self._late.arm(overdue_s(self.loop, since_s, timeout_s))

    def done(self, what: object) -> None:
        self._doing.pop(what, None)

    def end(self, failure: str) -> None:
        """Kills it, as it hangs or talks nonsense: it has died."""
        if self._run and self.is_running:
            self.failure = failure
            self._run.kill()
            self._run.stream.close()  # its end may be long in coming: a disk holds it
            self._on_stream_end(self._run)

    def when_exited(self, callback: Callback) -> None:
        """Calls back once the process that has died has ended, and its status is known."""
        if self._run in self._ending:
            self._run.on_exit.append(callback)
            self.reap()

    def close(self) -> None:
        """Sends what was written, then end-of-file, so that it ends; it stays ended."""
        self._close(Stream.close_gently)

    def kill(self) -> None:
        """Ends it at once; it stays ended."""
        self._close(Stream.close)
        for run in self._ending:
            run.stream.close()
            run.kill()

    def reap(self) -> bool:
        """Looks which processes have ended, and whether all have."""
        for run in list(self._ending):
            if (code := run.process.poll()) is not None:
                self._ending.remove(run)
                run.stream.close()  # it may wait for an end-of-file, which is no death
                is_expected = run.is_ended_here or (self.has_end and code == 0)
                level = logging.INFO if is_expected else logging.WARNING
                is_killed_here = run.is_ended_here and code == -signal.SIGKILL
                how = "is ended by this server" if is_killed_here else how_it_ended(code)
                logger.log(level, "%s %s", self.name, how)
                self.loop.mark()
                for callback in run.on_exit:
                    callback()
            elif run.kill_s <= self.loop.now_s():
                run.kill_s = math.inf
                logger.warning("%s has not ended since its channel did: killed", self.name)
                run.kill()
        return not self.num_processes

    # What happens to it.

    def _close(self, close: Callable[[Stream], None]) -> None:
        if self._restart:
            self._restart.cancel()
        if self._run and self.is_running:
            self._run.is_ended_here = True
            self._wait_for(self._run, self.drain_timeout_s)
            close(self._run.stream)

    def _receive(self, run: _Run, frames: FrameReader, data: bytes) -> None:
        frames.feed(data)
        try:
            while run.stream.is_open and (frame := frames.next_frame()) is not None:
                self.on_data(frame)
        except (msgspec.DecodeError, FrameTooLargeError) as error:
            self.end(f"it sent an invalid message: {error}")

    def _on_stream_end(self, run: _Run) -> None:
        if run not in self._ending:  # else it was closed
            self._wait_for(run, EXIT_S)
            self.on_end()

    def _wait_for(self, run: _Run, timeout_s: float) -> None:
        """Waits for a process to end, and kills it after a time."""
        self._doing.clear()
        run.kill_s = self.loop.now_s() + timeout_s
        self._ending.append(run)
        self._reaping.arm(self.loop.now_s() + REAP_INTERVAL_S)

    def _reap_ending(self) -> None:
        self.reap()
        if self._ending:
            self._reaping.arm(self.loop.now_s() + REAP_INTERVAL_S)

    def _look_for_late(self) -> None:
        until_s = {what: overdue_s(self.loop, *its) for what, its in self._doing.items()}
        now_s = self.loop.now_s()
        if late := [what for what, its_s in until_s.items() if its_s <= now_s]:
            timeout_s = max(self._doing[what][1] for what in late)
            self.on_late(late)
            self.end(f"it took longer than {timeout_s:g} s")
        elif until_s:
            self._late.arm(min(until_s.values()))


def how_it_ended(code: int | None) -> str:
    """An exit code in words; a signal is a negative one, and none means that it runs."""
    if code is None:
        return ""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time one has no name
        return f"was killed by signal {-code}"
