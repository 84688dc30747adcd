"""QaClient: questions to a QA server, over one TCP connection that is kept.

Standard library only, nothing from the rest of the package, and one file on purpose: it
works alone, wherever it is copied. ::

    with QaClient("localhost", 9999) as client:
        answer = client.ask("Who wrote it?", "It was written by Ada.")
        print(answer.answer, answer.score, answer.latency_ms)

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON, both ways; replies
come as they finish and are matched by `id`. What is always true:

- One loop sends and receives, so the client never waits to write while there is something
  to read: two full socket buffers cannot hold each other up.
- A connection that timed out, or whose reply could not be understood, is closed: a late
  reply is never taken for another question's. The next call opens a new connection.
- With `tls`, nothing is said before the server's certificate is found good; with `token`, no
  question leaves before the server has let the client in.
- A request that may have run is not sent again, with one exception. A server that refuses
  a frame as too large closes the stream; the questions behind it, which it never read,
  are put again on a new connection, and with them any before it that it left unanswered.

A client is for one thread at a time.
"""

from __future__ import annotations

import itertools
import json
import math
import selectors
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

_LENGTH = struct.Struct(">I")
_RECEIVE_BYTES = 1 << 18
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TLS_REASONS = {
    "WRONG_VERSION_NUMBER": "the server does not speak it",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a client's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not trust the client's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the server wants a later version of it",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the server refuses; it may ask for a client's certificate",
}

_Result = TypeVar("_Result")


class QaClientError(Exception):
    """A question that was not answered; the message is one line for people.

    Attributes:
        code: Stable lower_snake name of the kind; the server's own for a `QaServerError`.
        retryable: Whether the same request may succeed when sent again.
    """

    code: str = "client_error"
    retryable: bool = False


class InvalidRequestError(QaClientError, ValueError):
    """The request cannot be written as JSON in UTF-8; it was not sent."""

    code = "invalid_request"


class ServerUnreachableError(QaClientError):
    """No connection to the server could be made; nothing was sent."""

    code = "server_unreachable"
    retryable = True


class TlsError(QaClientError):
    """No connection that can be trusted: one side does not like what the other shows."""

    code = "tls_error"


class ConnectionLostError(QaClientError):
    """The server closed the connection before it answered; the request may have run."""

    code = "connection_lost"
    retryable = True


class RequestTimeoutError(QaClientError):
    """No reply came within `timeout_s`; the request may still run."""

    code = "client_timeout"
    retryable = True


class ProtocolError(QaClientError):
    """A reply that is too large or not as the protocol has it."""

    code = "protocol_error"


class QaServerError(QaClientError):
    """The server's error answer.

    Attributes:
        message: What happened, in the server's words.
        retry_after_ms: When to try again, where the server said so.
    """

    def __init__(
        self, code: str, message: str, retryable: bool = False, retry_after_ms: float | None = None
    ) -> None:
        super().__init__(code, message, retryable, retry_after_ms)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the text.

    Attributes:
        answer: The piece, `text[start:end]`; empty if the text holds no answer.
        score: How sure the model is, in [0, 1].
        start: Where it begins, in Unicode code points; None if there is no answer.
        end: Where it ends, exclusive; None if there is no answer.
    """

    answer: str
    score: float
    start: int | None
    end: int | None

    @property
    def known(self) -> bool:
        """Whether the text holds an answer."""
        return self.start is not None


@dataclass(frozen=True, slots=True)
class Answer(Span):
    """The answer to one question.

    Attributes:
        alternatives: The `top_k` best spans, this one included; empty if `top_k` was 1.
        timings_ms: The server's own account, by stage (`queue`, `inference`, ...).
        latency_ms: From just before the request was written to its reply's arrival.
        response: The reply as the server sent it.
    """

    alternatives: tuple[Span, ...]
    timings_ms: dict[str, float]
    latency_ms: float
    response: dict[str, Any] = field(repr=False, compare=False)


def tls_context(
    ca_file: Path | str | None = None,
    client_cert: Path | str | None = None,
    client_key: Path | str | None = None,
) -> ssl.SSLContext:
    """What `QaClient` needs to speak TLS, 1.2 or later, with a server whose name is checked.

    Args:
        ca_file: Certificates in PEM, one of which must have signed the server's; None takes
            those that the system trusts.
        client_cert: The client's own certificate in PEM, for a server that asks for one.
        client_key: Its private key; None if it is in the same file.

    Raises:
        TlsError: A file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise TlsError(f"no certificates can be read from {ca_file} ({_reason(error)})") from error
    if client_key is not None and client_cert is None:
        raise TlsError("a client's key needs its certificate")
    if client_cert is not None:
        try:
            context.load_cert_chain(client_cert, client_key)
        except OSError as error:
            raise TlsError(
                f"{client_cert} and its key cannot be used ({_reason(error)})"
            ) from error
    return context


@dataclass(frozen=True, slots=True)
class Health:
    """How a server is.

    Attributes:
        ready: Whether a question sent now can be expected to be answered.
        reason: Why it is not ready; None if it is.
        report: All that the server tells of its health, by name.
    """

    ready: bool
    reason: str | None
    report: dict[str, Any]


class QaClient:
    """A client of one QA server.

    Connects at the first question, and again at the next one after a loss.

    Args:
        host: The server's name or address.
        port: The server's TCP port.
        timeout_s: Longest wait for a connection, and for the next reply while any is
            outstanding; None waits for ever. Longer than a server lets a request wait in
            its queue, so that what is heard of a full server is its own error.
        max_response_bytes: Longest reply accepted.
        tls: Makes the connection one that speaks TLS, on these terms; see `tls_context`.
        token: Shown to the server on each connection, before the first question.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 9999,
        timeout_s: float | None = 60.0,
        *,
        max_response_bytes: int = 1 << 24,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._tls = tls
        self._token = token
        self._connection: _Connection | None = None
        # Never reused, not even on a new connection.
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connects now rather than at the next question; does nothing if connected.

        Raises:
            ServerUnreachableError: No connection could be made.
            TlsError: The server cannot be trusted, or does not trust the client.
            QaServerError: The server does not let the client in.
            QaClientError: Its other kinds: it let nobody know.
        """
        self._connected()

    def _connected(self) -> _Connection:
        if self._connection is not None:
            if self._connection.is_quiet():
                return self._connection
            self.close()
        self._connection = _Connection(self._open(), self._max_response_bytes)
        if self._token is not None:
            try:
                self._show_token(self._connection, self._token)
            except BaseException:
                self.close()
                raise
        return self._connection

    def _open(self) -> socket.socket:
        """A socket that is connected, and speaks TLS if it is to."""
        try:
            sock = socket.create_connection((self.host, self.port), self._timeout_s)
        except (OSError, UnicodeError) as error:
            raise ServerUnreachableError(
                f"no server can be reached at {self.host}:{self.port} ({_reason(error)})"
            ) from error
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock, server_hostname=self.host)
        except (OSError, ValueError) as error:
            sock.close()
            is_lost = isinstance(error, ssl.SSLEOFError | ConnectionError | TimeoutError)
            kind = ServerUnreachableError if is_lost else TlsError
            raise kind(f"no TLS with {self.host}:{self.port}: {_tls_reason(error)}") from error

    def _show_token(self, connection: _Connection, token: str) -> None:
        """Waits for the server's word on it, so that a stranger gets no question to read."""
        connection.send(_encode({"type": "auth", "token": token}))
        timeout_s = math.inf if self._timeout_s is None else self._timeout_s
        deadline_s = time.perf_counter() + timeout_s
        while (frame := next(connection.frames(), None)) is None:
            connection.exchange(deadline_s - time.perf_counter())
            if time.perf_counter() >= deadline_s:
                raise RequestTimeoutError(f"the server did not reply within {timeout_s:g} s")
        reply = _decode(frame)
        if "error" in reply:
            raise _server_error(reply["error"])
        if reply.get("auth") != "ok":
            raise ProtocolError("the server did not reply to the token")

    def close(self) -> None:
        """Closes the connection, if there is one; the client may be used again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self,
        question: str,
        text: str,
        *,
        top_k: int = 1,
        timeout_ms: float | None = None,
        priority: int | None = None,
    ) -> Answer:
        """Asks one question and waits for its answer.

        Args:
            question: The question.
            text: The text that is to answer it.
            top_k: How many spans to return, the best first.
            timeout_ms: How long the request may wait in the server's queue; None leaves it
                to the server.
            priority: 0 to 9, higher is served first; None leaves it to the server.

        Raises:
            QaServerError: The server answered with an error.
            QaClientError: Its other kinds: there was no answer, or it could not be read.
        """
        [result] = self.ask_many(
            [(question, text)], top_k=top_k, timeout_ms=timeout_ms, priority=priority
        )
        if isinstance(result, QaClientError):
            raise result
        return result

    def ask_many(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        top_k: int = 1,
        timeout_ms: float | None = None,
        priority: int | None = None,
        max_in_flight: int = 32,
    ) -> list[Answer | QaClientError]:
        """Asks many questions, several in flight at a time.

        A question that fails leaves its error in its place and does not disturb the others.
        Where the connection is lost, the questions in flight get the error and those not
        yet sent go over a new connection; they are given up too if none can be made, or if
        the lost one had answered nothing at all.

        Args:
            pairs: Question and text of each request; taken as there is room to send.
            top_k: As in `ask`, for every question.
            timeout_ms: As in `ask`, for every question.
            priority: As in `ask`, for every question.
            max_in_flight: How many questions are on their way at a time.

        Returns:
            For each pair, in their order, its answer or its error.

        Raises:
            ValueError: `max_in_flight` is less than 1.
        """
        if max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        settings = {"top_k": top_k, "timeout_ms": timeout_ms, "priority": priority}
        options = {name: value for name, value in settings.items() if value is not None}
        requests = (
            _Request(next(self._ids), index, {"question": question, "text": text, **options})
            for index, (question, text) in enumerate(pairs)
        )
        return self._results(_Pipeline(requests, _answer, max_in_flight, self._timeout_s))

    def health(self) -> Health:
        """Asks how the server is; it answers at once, however many questions wait.

        Raises:
            QaClientError: There was no answer, or it could not be read.
        """
        report = self._query("health")
        match report:
            case {"ready": bool(ready), "reason": str() | None as reason}:
                return Health(ready, reason, report)
        raise ProtocolError("the server sent a report of its health without ready or reason")

    def stats(self) -> dict[str, Any]:
        """Asks what the server has counted: `counters`, `gauges` and `histograms`, by name.

        Raises:
            QaClientError: There was no answer, or it could not be read.
        """
        return self._query("stats")

    def _query(self, kind: str) -> dict[str, Any]:
        def report(reply: dict[str, Any], _latency_ms: float) -> dict[str, Any]:
            if not isinstance(reply.get(kind), dict):
                raise ProtocolError(f"the server sent a reply without {kind}")
            return dict(reply[kind])

        request = _Request(next(self._ids), 0, {"type": kind})
        [result] = self._results(_Pipeline(iter([request]), report, 1, self._timeout_s))
        if isinstance(result, QaClientError):
            raise result
        return result

    def _results(self, pipeline: _Pipeline[_Result]) -> list[_Result | QaClientError]:
        while pipeline.has_waiting():
            self._run(pipeline)
        return pipeline.results()

    def _run(self, pipeline: _Pipeline[_Result]) -> None:
        """Takes the pipeline as far as one connection goes."""
        try:
            pipeline.run(self._connected())
        except QaClientError as error:
            self.close()
            pipeline.settle_lost(error)
        except BaseException:
            # An interrupt among them: replies that nobody will match are under way.
            self.close()
            raise


@dataclass(slots=True)
class _Request:
    id: int
    index: int
    fields: dict[str, Any]
    frame_bytes: int = 0
    started_s: float = 0.0


class _Pipeline(Generic[_Result]):
    """The questions of one call: those waiting, those in flight, and what became of them.

    Args:
        requests: The questions.
        read_reply: Makes of a reply and its latency in milliseconds what the caller gets.
        max_in_flight: How many questions are on their way at a time.
        timeout_s: Longest wait for the next reply; None waits for ever.
    """

    def __init__(
        self,
        requests: Iterator[_Request],
        read_reply: Callable[[dict[str, Any], float], _Result],
        max_in_flight: int,
        timeout_s: float | None,
    ) -> None:
        self._fresh = requests
        self._read_reply = read_reply
        self._again: deque[_Request] = deque()
        self._in_flight: dict[int, _Request] = {}
        self._results: dict[int, _Result | QaClientError] = {}
        self._max_in_flight = max_in_flight
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        # Of the present connection: an error that named no request, and the replies so far.
        self._refusal: QaServerError | None = None
        self._replies = 0

    def results(self) -> list[_Result | QaClientError]:
        """What became of each question, in the order of the questions."""
        return [self._results[index] for index in range(len(self._results))]

    def has_waiting(self) -> bool:
        """Whether there is a question that is still to be sent."""
        if not self._again:
            self._again.extend(itertools.islice(self._fresh, 1))
        return bool(self._again)

    def run(self, connection: _Connection) -> None:
        """Sends what is waiting and settles what is answered, until nothing is left.

        Raises:
            QaClientError: The connection can be used no longer; see `settle_lost`.
        """
        deadline_s = time.perf_counter() + self._timeout_s
        self._fill(connection)
        while self._in_flight:
            connection.exchange(deadline_s - time.perf_counter())
            for frame in connection.frames():
                self._settle(_decode(frame))
                deadline_s = time.perf_counter() + self._timeout_s
            if self._refusal is not None and len(self._in_flight) <= 1:
                raise self._refusal
            if time.perf_counter() >= deadline_s:
                raise RequestTimeoutError(f"the server did not reply within {self._timeout_s:g} s")
            self._fill(connection)

    def settle_lost(self, error: QaClientError) -> None:
        """Settles the questions that a lost connection leaves without an answer."""
        cause = self._refusal or error
        if cause.code == "frame_too_large" and self._in_flight:
            # The refused frame is one of these, so the largest of them is over the limit.
            guilty = max(self._in_flight.values(), key=lambda request: request.frame_bytes)
            self._results[self._in_flight.pop(guilty.id).index] = cause
            self._again.extend(self._in_flight.values())
        else:
            lost = list(self._in_flight.values())
            while not self._replies and self.has_waiting():
                lost.append(self._again.popleft())
            self._results |= {request.index: cause for request in lost}
        self._in_flight.clear()
        self._refusal, self._replies = None, 0

    def _fill(self, connection: _Connection) -> None:
        """Sends requests while the socket takes them at once and the window is open."""
        while (
            len(self._in_flight) < self._max_in_flight
            and self._refusal is None
            and connection.can_send()
            and self.has_waiting()
        ):
            request = self._again.popleft()
            request.started_s = time.perf_counter()
            try:
                frame = _encode({"id": request.id, **request.fields})
            except InvalidRequestError as error:
                self._results[request.index] = error
                continue
            request.frame_bytes = len(frame)
            self._in_flight[request.id] = request
            connection.send(frame)

    def _settle(self, reply: dict[str, Any]) -> None:
        """Gives a reply to the question it answers.

        Raises:
            ProtocolError: Not a reply to any question in flight.
        """
        arrived_s = time.perf_counter()
        error = _server_error(reply["error"]) if "error" in reply else None
        if error is not None and reply.get("id") is None:
            self._refusal = error
            return
        request = self._request_of(reply)
        latency_ms = (arrived_s - request.started_s) * 1e3
        self._results[request.index] = error or self._read_reply(reply, latency_ms)
        del self._in_flight[request.id]
        self._replies += 1

    def _request_of(self, reply: dict[str, Any]) -> _Request:
        reply_id = reply.get("id")
        if not isinstance(reply_id, int) or reply_id not in self._in_flight:
            raise ProtocolError("the server replied to a question that was not asked")
        return self._in_flight[reply_id]


class _Connection:
    """A socket with a buffer each way: it knows frames, and nothing of questions."""

    def __init__(self, sock: socket.socket, max_frame_bytes: int) -> None:
        self._socket = sock
        self._max_frame_bytes = max_frame_bytes
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._send_failed = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def is_quiet(self) -> bool:
        """Whether it stands and holds nothing unread, as it must between two calls."""
        try:
            self._socket.recv(1)  # What it takes is not missed: a loud one is closed.
        except _AGAIN:
            return not self._inbox and self.can_send()
        except OSError:
            pass
        return False

    def can_send(self) -> bool:
        """Whether all that was given to `send` is on its way and more can follow."""
        return not self._outbox and not self._send_failed

    def send(self, frame: bytes) -> None:
        """Sends what the socket takes at once; `exchange` sends the rest."""
        self._outbox += frame
        self._flush()

    def exchange(self, timeout_s: float) -> None:
        """Waits until the socket can send or has something, and does what it can.

        Raises:
            ConnectionLostError: The server has closed.
        """
        writing = selectors.EVENT_WRITE if self._outbox else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | writing)
        for _, ready in self._selector.select(None if timeout_s == math.inf else timeout_s):
            if ready & selectors.EVENT_WRITE:
                self._flush()
            if ready & selectors.EVENT_READ:
                self._receive()

    def frames(self) -> Iterator[bytearray]:
        """Takes the complete frames that have arrived.

        Raises:
            ProtocolError: A length over the limit.
        """
        while len(self._inbox) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._inbox)[0]
            if end - _LENGTH.size > self._max_frame_bytes:
                raise ProtocolError(f"the server sent a reply of {end - _LENGTH.size} bytes")
            if len(self._inbox) < end:
                return
            frame = self._inbox[_LENGTH.size : end]
            del self._inbox[:end]
            yield frame

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._outbox)
        except _AGAIN:
            return
        except OSError:
            # The server has closed, but its last words may be here still: go on reading.
            self._send_failed = True
            self._outbox.clear()
            return
        del self._outbox[:sent]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)  # A TLS record whole: none is left inside.
        except _AGAIN:
            return
        except ssl.SSLEOFError:
            data = b""
        except ssl.SSLError as error:
            raise TlsError(_tls_reason(error)) from error
        except OSError:
            data = b""
        if not data:
            raise ConnectionLostError("the server closed the connection before it answered")
        self._inbox += data


def _reason(error: Exception) -> str:
    """The part of an error that says why, without its number."""
    if isinstance(error, ssl.SSLError):
        return "not certificates and keys in PEM, or not a pair"
    return str(getattr(error, "strerror", None) or error)


def _tls_reason(error: Exception) -> str:
    """Why there is no TLS, in words for people."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted ({error.verify_message})"
        case ssl.SSLEOFError() | ConnectionResetError():
            return "the server closed the connection"
        case ssl.SSLError(reason=str(reason)):
            return _TLS_REASONS.get(reason, reason.lower().replace("_", " "))
    return _reason(error)


def _encode(fields: dict[str, Any]) -> bytes:
    try:
        body = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        return _LENGTH.pack(len(body)) + body
    except (TypeError, ValueError, struct.error) as error:
        raise InvalidRequestError(f"the request cannot be sent: {error}") from error


def _decode(frame: bytearray) -> dict[str, Any]:
    try:
        reply = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the server sent a reply that is not UTF-8 JSON") from error
    if not isinstance(reply, dict):
        raise ProtocolError("the server sent a reply that is not a JSON object")
    return reply


def _server_error(value: object) -> QaServerError:
    match value:
        case {"code": str(code), "message": str(message), "retryable": bool(retryable), **rest}:
            retry_after_ms: Any = rest.get("retry_after_ms")
            return QaServerError(code, message, retryable, retry_after_ms)
    raise ProtocolError("the server sent an error without code, message or retryable")


def _answer(reply: dict[str, Any], latency_ms: float) -> Answer:
    best = _span(reply)
    spans = reply.get("answers", [])
    timings_ms = reply.get("timings_ms", {})
    if not isinstance(spans, list) or not isinstance(timings_ms, dict):
        raise ProtocolError("the server sent answers or timings of a wrong type")
    place = (best.answer, best.score, best.start, best.end)
    return Answer(*place, tuple(map(_span, spans)), timings_ms, latency_ms, reply)


def _span(value: object) -> Span:
    match value:
        case {
            "answer": str(answer),
            "score": float() | int() as score,
            "start": int() | None as start,
            "end": int() | None as end,
        }:
            return Span(answer, float(score), start, end)
    raise ProtocolError("the server sent an answer without answer, score, start or end")
