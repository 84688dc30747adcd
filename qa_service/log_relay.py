"""Standard output and standard error that nobody waits for, whoever reads them.

A pipe that nobody reads, a stopped terminal or a disk that hangs keeps a writer waiting; a server's
loop may not wait. So descriptor 1 or 2 of a server becomes a pipe of its own, which its child
programs inherit. One thread reads that pipe, always; another writes to the descriptor that was
there before.

    loop's log ───────────────────────────▶ lines, at most
    print, native libraries, children ─pipe─▶ MAX_WAITING_BYTES ──▶ the descriptor

Lines that do not fit are lost and counted; the count stands in their place when there is room
again. Only threads keep this promise for every kind of descriptor: `O_NONBLOCK` holds for all
programs that share a pipe or a terminal, and does nothing for files.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from qa_service.logs import plural

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 1 << 18
"""Some thousand lines: more than a start writes, and seconds of a busy log at its lowest level."""
MAX_LINE_BYTES = 1 << 16
"""A longer line that comes through the pipe is cut."""
FLUSH_S = 1.0
"""How long the end of the program waits for what is not written yet."""


class Relay:
    """Writes lines to a descriptor, in a separate thread.

    Args:
        say_lost: The line that stands for this number of lines.
        on_fault: Called by the thread when it cannot write for the first time.
    """

    def __init__(
        self,
        descriptor: int,
        say_lost: Callable[[int], str],
        on_fault: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self._descriptor = descriptor
        self._say_lost = say_lost
        self._on_fault = on_fault
        self._has_failed = self._is_closed = False
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._num_lost = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log_relay", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Takes whole lines, as the stream of a logging handler does."""
        self.put(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Does nothing: each line is written as soon as it can be."""

    def put(self, lines: bytes) -> None:
        """Takes whole lines, or counts them as lost."""
        with self._changed:
            # After a lost line, later ones are lost too, so that the count stands in their place.
            if self._num_lost or self._num_bytes + len(lines) > MAX_WAITING_BYTES:
                self._num_lost += lines.count(b"\n")
            else:
                self._waiting.append(lines)
                self._num_bytes += len(lines)
            self._changed.notify()

    @property
    def num_lost(self) -> int:
        """Lines that are lost and not counted in the output yet."""
        with self._changed:
            return self._num_lost

    def close(self) -> None:
        """Waits until all is written, for at most `FLUSH_S`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        num_lost = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._num_lost or self._is_closed)
                if not self._waiting and not self._num_lost:
                    return
                lines, num_lost_behind = b"".join(self._waiting), self._num_lost
                self._waiting.clear()
                self._num_bytes = self._num_lost = 0
            num_lost = self._say(num_lost)
            num_lost += self._write(lines)
            if num_lost_behind:
                num_lost = self._say(num_lost + num_lost_behind)

    def _say(self, num_lost: int) -> int:
        """Writes how many lines are lost; returns the number if that could not be written."""
        return num_lost if num_lost and self._write(self._say_lost(num_lost).encode()) else 0

    def _write(self, lines: bytes) -> int:
        """Writes lines; returns how many of them could not be written."""
        while lines:
            try:
                lines = lines[os.write(self._descriptor, lines) :]
            except BlockingIOError:  # another program has set O_NONBLOCK on it
                select.select([], [self._descriptor], [])
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    self._on_fault(error)
                break
        return lines.count(b"\n")


def relay_standard_streams() -> Callable[[], None]:
    """Has no writer of standard output and error wait, in this process and in its children.

    `configure_logging` has been called. Standard error at a terminal stays the children's, as they
    show there how far they are; the log of this process does not wait for it either.

    Returns:
        What undoes it, in at most some `FLUSH_S`; otherwise the end of the program does.
    """
    handler = logging.getLogger().handlers[0]

    def say_lost(number: int) -> str:
        words = f"{plural(number, 'line')} did not fit and are lost: this was full, or not read"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, words, None, None)
        return f"{handler.format(record)}\n"

    def on_fault(error: OSError) -> None:
        logger.warning("standard output cannot be written: %s", error.strerror)

    ends = contextlib.ExitStack()
    log = Relay(os.dup(sys.stderr.fileno()), say_lost)
    ends.callback(log.close)
    if isinstance(handler, logging.StreamHandler):
        handler.setStream(log)
    if not sys.stderr.isatty():
        _replace(sys.stderr, log, ends)
    output = Relay(os.dup(sys.stdout.fileno()), say_lost, on_fault)
    ends.callback(output.close)
    _replace(sys.stdout, output, ends)
    atexit.register(ends.close)
    return ends.close


def _replace(stream: TextIO, relay: Relay, ends: contextlib.ExitStack) -> None:
    """Makes a stream's descriptor a pipe that is read into the relay until the end."""
    stream.flush()
    descriptor = stream.fileno()
    before = os.dup(descriptor)
    read_end, write_end = os.pipe()
    os.dup2(write_end, descriptor)
    os.close(write_end)
    reader = threading.Thread(target=_read, args=(read_end, relay), name="log_relay", daemon=True)
    reader.start()

    def restore() -> None:
        stream.flush()
        os.dup2(before, descriptor)  # the end of the pipe, unless a child has not ended
        reader.join(FLUSH_S)

    ends.callback(restore)


def _read(descriptor: int, relay: Relay) -> None:
    rest = b""
    while data := os.read(descriptor, MAX_LINE_BYTES):
        lines, newline, rest = (rest + data).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, newline, rest = lines + newline + rest, b"\n", b""
        if newline:
            relay.put(lines + newline)
    if rest:
        relay.put(rest + b"\n")
