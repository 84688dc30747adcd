"""A TLS stream: to its owner the same as `Stream`, on which it is built.

    SHAKING ──handshake──▶ OPEN ──close_gently──▶ CLOSING ──as a Stream──▶ CLOSED
       └── refused ──────────┴── a bad record ───────▲ (with an alert)

A handshake costs a signature, a hundred times the work of a request. So each step waits for its
turn in a `HandshakeQueue`, which takes a few a round: a thousand new clients delay each other, and
not those that are connected. While a step waits, its socket is not read.

A peer may provoke output of TLS's own (key updates ask for answers) without reading it: then its
socket is not read until it has. So TLS's own output is bounded as answers are.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import READ_BYTES, OnData, OnEvent, Stream
from qa_service.net.timers import Callback
from qa_service.net.tls import HANDSHAKE_RECORD, TlsSession

logger = logging.getLogger(__name__)

STEPS_A_ROUND = 4
"""Under a millisecond of the loop with a P-256 key."""


class HandshakeQueue:
    """Runs steps of handshakes in turn, a few in each round of the loop."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._steps: deque[Callback] = deque()
        self._is_due = False

    def add(self, step: Callback) -> None:
        self._steps.append(step)
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._is_due = False
        try:
            for _ in range(min(STEPS_A_ROUND, len(self._steps))):
                self._steps.popleft()()
        finally:
            self._schedule()


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """Certificates and bounds of TLS streams.

    Attributes:
        plain_reply: Returns the reply, in clear text, to a peer whose first bytes are not TLS;
            empty for none.
    """

    context: ssl.SSLContext
    queue: HandshakeQueue
    handshake_timeout_s: float
    plain_reply: Callable[[bytes], bytes]


class _State(Enum):
    SHAKING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class TlsStream:
    """One connected socket on the loop, which it owns, with TLS: a `ByteStream`."""

    def __init__(self, loop: EventLoop, sock: socket.socket, name: str, terms: TlsTerms) -> None:
        self._name = name
        self._terms = terms
        self._on_data: OnData = lambda data: None
        self._on_end: OnEvent = lambda: None
        self._on_flushed: OnEvent = lambda: None
        self._session = TlsSession(terms.context)
        self._state = _State.SHAKING
        self._is_first = True
        self._waits_for_turn = False
        self._is_unread = False
        self._reading = True
        self._stream = Stream(loop, sock)
        self._timer = loop.call_at(loop.now_s() + terms.handshake_timeout_s, self._on_timeout)

    def start(self, on_data: OnData, on_end: OnEvent, on_flushed: OnEvent = lambda: None) -> None:
        """Begins the handshake; then reads at most `READ_BYTES` and a record a round."""
        self._on_data, self._on_end, self._on_flushed = on_data, on_end, on_flushed
        self._stream.start(self._on_bytes, self._on_stream_end, self._on_sent)

    @property
    def is_open(self) -> bool:
        return self._state in {_State.SHAKING, _State.OPEN}

    @property
    def output_bytes(self) -> int:
        return self._stream.output_bytes

    @property
    def waiting_since_s(self) -> float | None:
        return self._stream.waiting_since_s

    def write(self, data: bytes | bytearray) -> None:
        if self._state is _State.OPEN:
            self._session.write(data)
            self._stream.write(self._session.output())

    def set_reading(self, reading: bool) -> None:
        self._reading = reading
        self._update_reading()

    def close(self) -> None:
        if self._state is not _State.CLOSED:
            self._stream.close()
            self._let_go()

    def close_gently(self) -> None:
        if self._state is _State.OPEN:
            self._session.say_goodbye()
            self._stream.write(self._session.output())
        self._close_stream_gently()

    def _close_stream_gently(self) -> None:
        if self.is_open:
            self._state = _State.CLOSING
            self._timer.cancel()
            self._stream.close_gently()

    def _update_reading(self) -> None:
        if self.is_open:
            may_read = not self._waits_for_turn and not self._is_unread
            self._stream.set_reading(self._reading and may_read)

    def _on_bytes(self, data: bytes) -> None:
        if self._is_first and data[0] != HANDSHAKE_RECORD:
            self._say_refused("it does not speak TLS")
            self._stream.write(self._terms.plain_reply(data))
            self._close_stream_gently()
            return
        self._is_first = False
        self._session.feed(data)
        if self._state is _State.OPEN:
            self._take_data()
        else:
            self._waits_for_turn = True
            self._update_reading()
            self._terms.queue.add(self._shake_hands)

    def _on_sent(self) -> None:
        self._is_unread = False
        self._update_reading()
        if self._state is _State.OPEN:
            self._on_flushed()

    def _on_stream_end(self) -> None:
        self._let_go()
        self._on_end()

    def _shake_hands(self) -> None:
        if self._state is not _State.SHAKING:
            return  # closed while it waited for its turn
        self._waits_for_turn = False
        try:
            is_done = self._session.shake_hands()
        except ssl.SSLError as error:
            self._fail("handshake", error)
            return
        self._stream.write(self._session.output())
        self._update_reading()
        if is_done and self.is_open:
            self._timer.cancel()
            self._state = _State.OPEN
            self._take_data()

    def _on_timeout(self) -> None:
        self._say_refused("its TLS handshake timed out")
        self._end()

    def _take_data(self) -> None:
        """Passes plain bytes on; a handshake's last bytes may hold part of the first request."""
        try:
            data = self._session.read()
        except ssl.SSLError as error:
            self._fail("record", error)
            return
        if reply := self._session.output():
            self._stream.write(reply)
            self._is_unread = self._stream.output_bytes > READ_BYTES
            self._update_reading()
        if data and self.is_open:
            try:
                self._on_data(data)
            except Exception:
                logger.exception("a stream's data could not be handled; closing it")
                self._end()
        if self._session.has_ended and self.is_open:
            self._end()

    def _fail(self, what: str, error: ssl.SSLError) -> None:
        """Closes, after TLS's alert if there is one."""
        self._say_refused(f"bad TLS {what}: {error.reason or 'cut off'}")
        self._stream.write(self._session.output())
        self._close_stream_gently()

    def _say_refused(self, why: str) -> None:
        logger.info("%s is refused: %s", self._name, why, extra={"peer": self._name})

    def _end(self) -> None:
        if self._state is not _State.CLOSED:
            self.close()
            self._on_end()

    def _let_go(self) -> None:
        self._state = _State.CLOSED
        self._timer.cancel()
        self._session.free()
