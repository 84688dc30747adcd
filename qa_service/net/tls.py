"""TLS: the certificates; a session without a socket; a stream, to its owner the same as `Stream`.

    socket bytes ──feed──▶ incoming ┐            ┌──▶ read ──▶ plain bytes
                                    ├─ SSLObject ┤
    socket bytes ◀─output── outgoing┘            └─── write ◀── plain bytes

Without a socket, nothing here waits: TLS's own messages (handshake, alerts, key updates) are in
`output` after each step, and missing bytes come with the next `feed`. Versions are 1.2 and later;
renegotiation, which only 1.2 has, is refused.

    SHAKING ──handshake──▶ OPEN ──close_gently──▶ CLOSING ──as a Stream──▶ CLOSED
       └── refused ──────────┴── a bad record ───────▲ (with an alert)

A handshake costs a signature, a hundred times the work of a request. So each step waits for its
turn in a `HandshakeQueue`, which takes a few a round: a thousand new clients delay each other, and
not those that are connected. While a step waits, its socket is not read.

A peer may provoke output of TLS's own (key updates ask for answers) without reading it: then its
socket is not read until it has. So TLS's own output is bounded as answers are.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.files import open_regular
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import READ_BYTES, OnData, OnEvent, Stream
from qa_service.net.timers import Callback

logger = logging.getLogger(__name__)

RECORD_BYTES = 16384
"""The maximum of plain bytes in one record (RFC 8446, 5.1)."""

HANDSHAKE_RECORD = 0x16
"""The first byte of a connection that speaks TLS (RFC 8446, 5.1)."""

STEPS_A_ROUND = 4
"""Under a millisecond of the loop with a P-256 key."""


def tls_files(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> tuple[Path, Path, Path | None] | None:
    """The files for `server_context`; None for no TLS, a `SetupError` for one of them alone."""
    if cert and key:
        return cert, key, client_ca
    if cert or key or client_ca:
        raise SetupError("--tls_cert and --tls_key are needed together")
    return None


def server_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Loads a server's certificates.

    Args:
        cert: PEM: the certificate, then the intermediate ones.
        key: PEM, without a passphrase.
        client_ca: PEM; one of these must have signed a client's certificate. None asks for no
            certificate.

    Raises:
        SetupError: A file cannot be read, has another format, or does not fit another file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    for flag, path in (("cert", cert), ("key", key), ("client_ca", client_ca)):
        try:  # OpenSSL's errors do not name the file that cannot be read
            if path is not None:
                open_regular(path).close()
        except OSError as error:
            raise SetupError(f"cannot read --tls_{flag} {path}: {error.strerror}") from None

    def refuse_to_ask() -> bytes:
        raise SetupError(f"--tls_key {key} has a passphrase; use a key without one")

    try:
        context.load_cert_chain(cert, key, password=refuse_to_ask)
    except ssl.SSLError as error:
        raise SetupError(f"--tls_cert {cert} and --tls_key {key}: {_mismatch(error)}") from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError:
            raise SetupError(f"--tls_client_ca {client_ca}: holds no certificate in PEM") from None
    return context


def _mismatch(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if error.reason in {"EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
        return "the certificate is too weak; make one with a P-256 key and SHA-256"
    return "not a certificate and its private key in PEM"


class TlsSession:
    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_ended = False

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Continues the handshake with the bytes it has; returns whether it is complete.

        Raises:
            ssl.SSLError: The handshake failed; `output` may hold an alert for the peer.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bytes:
        """Takes out the plain bytes of all complete records; raises `ssl.SSLError` for another."""
        pieces = []
        # An incomplete record is inside the SSLObject and not pending, so this ends.
        while (self._incoming.pending or self._ssl.pending()) and not self.has_ended:
            try:
                piece = self._ssl.read(RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            self.has_ended = not piece
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, data: bytes | bytearray) -> None:
        """Encrypts data; the records are in `output`."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += self._ssl.write(view[done : done + RECORD_BYTES])

    def say_goodbye(self) -> None:
        """Sends close_notify, so that the peer knows that nothing was cut off."""
        with contextlib.suppress(ssl.SSLError):  # the peer has not sent its own, and need not
            self._ssl.unwrap()

    def output(self) -> bytes:
        return self._outgoing.read()

    def free(self) -> None:
        """Frees its memory now: a stream and its owner are a cycle, which is collected late."""
        del self._ssl, self._incoming, self._outgoing


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


class TlsTerms(msgspec.Struct, frozen=True):
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

    def write_soon(self, data: bytes | bytearray) -> None:
        if self._state is _State.OPEN:
            self._session.write(data)
            self._stream.write_soon(self._session.output())

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
