"""A non-blocking socket on the loop, with an output buffer.

    OPEN ──close_gently──▶ CLOSING (flush, half-close, discard input) ──▶ CLOSED
      └──────────────────────────── close, or the peer's end ─────────────────────▲

If a socket is closed with unread bytes, the kernel sends a reset, which can destroy the last answer
before the peer reads it. So a gentle close keeps reading, for a bounded time, and discards.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import Timer

logger = logging.getLogger(__name__)

OnData = Callable[[bytes], None]
OnEvent = Callable[[], None]

READ_BYTES = 65536
"""Of one stream in a round, so that no client holds up the others."""
LINGER_S = 1.0
"""How long a closing stream waits for its peer: several of the longest round trips."""


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


# Looked up often; as an attribute of the enum each takes 0.1 µs in Python 3.11.
_OPEN, _CLOSING, _CLOSED = _State


class ByteStream(Protocol):
    """A connection's transport: `Stream` or `TlsStream`."""

    @property
    def is_open(self) -> bool:
        """Whether it still reads and writes."""

    @property
    def output_bytes(self) -> int:
        """Bytes written that the kernel has not taken."""

    @property
    def waiting_since_s(self) -> float | None:
        """When the peer last took bytes while output waits; None without waiting output."""

    def start(self, on_data: OnData, on_end: OnEvent, on_flushed: OnEvent = ...) -> None:
        """Begins to read.

        Args:
            on_data: Takes received bytes, a bounded number each round.
            on_end: Called once when the stream ends by itself; not after `close`.
            on_flushed: Called when all waiting output has been sent.
        """

    def write(self, data: bytes | bytearray) -> None:
        """Sends as much as fits and keeps the rest; ignored once closing or closed."""

    def write_soon(self, data: bytes | bytearray) -> None:
        """The same in this round or the next, with all that is written until then."""

    def set_reading(self, reading: bool) -> None:
        """Stops or resumes reading, which is backpressure to the peer."""

    def close(self) -> None:
        """Closes at once; unsent output is lost."""

    def close_gently(self) -> None:
        """Closes when the peer has received all output, or after a while."""


class Stream:
    """One connected socket on the loop, which it owns: a `ByteStream`."""

    def __init__(self, loop: EventLoop, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._on_data: OnData = lambda data: None
        self._on_end: OnEvent = lambda: None
        self._on_flushed: OnEvent = lambda: None
        self._out = bytearray()
        self._reading = False
        self._interest = (False, False)
        self._state = _OPEN
        self.is_open = True
        self.waiting_since_s: float | None = None
        self._linger: Timer | None = None

    def start(self, on_data: OnData, on_end: OnEvent, on_flushed: OnEvent = lambda: None) -> None:
        """Begins to read, at most `READ_BYTES` a round."""
        self._on_data, self._on_end, self._on_flushed = on_data, on_end, on_flushed
        self.set_reading(True)

    @property
    def output_bytes(self) -> int:
        return len(self._out)

    def write(self, data: bytes | bytearray) -> None:
        if self._state is not _OPEN:
            return
        if self._out:
            self._out += data
            return
        try:
            sent = self._sock.send(data)  # mostly all of it, without a copy
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._ended()
            return
        if sent < len(data):
            self._out += data[sent:]
            self._flush()

    def write_soon(self, data: bytes | bytearray) -> None:
        if self._state is _OPEN:
            if not self._out:
                self.waiting_since_s = self._loop.now_s()
                self._loop.call_soon(self._writable)
            self._out += data

    def set_reading(self, reading: bool) -> None:
        if reading != self._reading:
            self._reading = reading
            self._update_interest()

    def close(self) -> None:
        if self._state is _CLOSED:
            return
        self._state = _CLOSED
        self.is_open = False
        if self._linger:
            self._linger.cancel()
        self._loop.watch(self._sock)
        self._sock.close()

    def close_gently(self) -> None:
        """Closes when all is sent and the peer has seen it, or after `LINGER_S`."""
        if self._state is not _OPEN:
            return
        self._state = _CLOSING
        self.is_open = False
        self._reading = True
        self._linger = self._loop.call_at(self._loop.now_s() + LINGER_S, self._ended)
        self._update_interest()
        self._flush()

    def _update_interest(self) -> None:
        reading, writing = interest = (self._reading, bool(self._out))
        if self._state is not _CLOSED and interest != self._interest:
            self._interest = interest
            self._loop.watch(
                self._sock, self._readable if reading else None, self._writable if writing else None
            )

    def _readable(self) -> None:
        if self._state is _CLOSED:
            return
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
        elif self._state is _OPEN:
            try:
                self._on_data(data)
            except Exception:
                logger.exception("a stream's data could not be handled; closing it")
                self._ended()

    def _writable(self) -> None:
        if self._state is not _CLOSED:
            self._flush()
            if self._state is _OPEN and not self._out:
                self._on_flushed()

    def _flush(self) -> None:
        before = len(self._out)
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._ended()
            return
        if not self._out:
            self.waiting_since_s = None
        elif self.waiting_since_s is None or len(self._out) < before:
            self.waiting_since_s = self._loop.now_s()
        self._update_interest()
        if not self._out and self._state is _CLOSING:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def _ended(self) -> None:
        if self._state is not _CLOSED:
            self.close()
            self._on_end()
