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
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

_LENGTH = struct.Struct(">I")
_RECEIVE_BYTES = 1 << 18


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
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 9999,
        timeout_s: float | None = 60.0,
        *,
        max_response_bytes: int = 1 << 24,
    ) -> None:
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
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
        """
        self._connected()

    def _connected(self) -> _Connection:
        if self._connection is not None:
            if self._connection.is_quiet():
                return self._connection
            self.close()
        try:
            sock = socket.create_connection((self.host, self.port), self._timeout_s)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ServerUnreachableError(
                f"no server can be reached at {self.host}:{self.port} ({reason})"
            ) from error
        self._connection = _Connection(sock, self._max_response_bytes)
        return self._connection

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
        pipeline = _Pipeline(requests, max_in_flight, self._timeout_s)
        while pipeline.has_waiting():
            self._run(pipeline)
        return pipeline.results()

    def _run(self, pipeline: _Pipeline) -> None:
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


class _Pipeline:
    """The questions of one call: those waiting, those in flight, and what became of them."""

    def __init__(
        self, requests: Iterator[_Request], max_in_flight: int, timeout_s: float | None
    ) -> None:
        self._fresh = requests
        self._again: deque[_Request] = deque()
        self._in_flight: dict[int, _Request] = {}
        self._results: dict[int, Answer | QaClientError] = {}
        self._max_in_flight = max_in_flight
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        # Of the present connection: an error that named no request, and the replies so far.
        self._refusal: QaServerError | None = None
        self._replies = 0

    def results(self) -> list[Answer | QaClientError]:
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
        self._results[request.index] = error or _answer(reply, latency_ms)
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
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
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
        except BlockingIOError:
            return
        except OSError:
            # The server has closed, but its last words may be here still: go on reading.
            self._send_failed = True
            self._outbox.clear()
            return
        del self._outbox[:sent]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise ConnectionLostError("the server closed the connection before it answered")
        self._inbox += data


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
