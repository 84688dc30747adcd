"""QaClient: asks a QA server, or several replicas, over TCP.

Standard library only, and one file on purpose: it works alone, wherever it is copied. ::

    with QaClient("localhost", 9999) as client:
        answer = client.ask("Who wrote it?", "It was written by Ada.")
        print(answer.answer, answer.score, answer.latency_ms)

    QaClient(["a:9999", "b:9999"])    # two replicas; so is one name with two addresses

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON, both ways; replies arrive
in any order and are matched by `id`. What is always true:

- Any number of threads may use a client. A call sends and receives on connections that no other
  call uses meanwhile; between calls they are kept open.
- One loop sends and receives, so the client never waits to write while there is something to read:
  two full socket buffers cannot block each other.
- A reply with `closing` is followed by no other request on its connection, which the server is
  about to close: another is opened, and this one is closed once its questions are answered.
- A connection that timed out, or whose reply was malformed, is closed: a late reply is never taken
  for another question's. The next call opens a new connection.
- With `tls`, nothing is sent before the server's certificate is verified; with `token`, no question
  is sent before the server has accepted the token.
- Of two random servers, the one with fewer of this client's requests in flight gets the next (power
  of two choices: Mitzenmacher, 2001). A server that failed is avoided for a time.
- Answering changes nothing at a server, so a failed request is sent again: after a lost connection,
  `shutting_down` or `unavailable`, at once to a server that has not had it; after `queue_full`, to
  such a server or after `retry_after_ms`. It is sent at most once to each server and twice more,
  after a pause, and not after the deadline: a single address, which may be a load balancer's, is
  tried three times.

What decides this has no socket and no clock, after h11: bytes and the time go in, bytes and settled
questions come out. ::

    Asking         where questions are sent, when again, and when no more
    Conversation   one connection: ids, what is pending, replies, withdrawing, closing, timeouts

`QaClient`, `AsyncQaClient`, the jobs' and the gateway's links and the load generator are loops and
sockets around them; `Stream` is a conversation's non-blocking socket.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import json
import math
import os
import random
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

_LENGTH = struct.Struct(">I")
MAX_RESPONSE_BYTES = 1 << 24
"""Longest reply accepted by default: many times what ten answers with their passages take."""
_RECEIVE_BYTES = 1 << 16
"""More than a TLS record, so that none stays inside the socket, where no selector sees it."""
CONNECT_TIMEOUT_S = 5.0
"""Longest wait for one server to accept a connection and the token; a lost SYN is sent again."""
_RESOLVE_INTERVAL_S = 30.0
"""How soon a new replica is found; one second after a server has failed."""
_MIN_REST_S, _MAX_REST_S = 0.1, 30.0
"""How long a failed server is avoided at first, and at most; each failure doubles it."""
_LATENCIES, _MIN_LATENCIES = 100, 20
"""The p95 is that of the last 100 replies, and follows the load; before 20 it says nothing."""
_MORE_TRIES = 2
"""The first may reach, behind a load balancer, the server that was killed or is starting again."""
REFUSALS = {"unauthorized", "tls_required"}
"""Errors of a client without the server's token or TLS, whatever it asks."""
_RESENT = {"connection_lost", "server_unreachable", "shutting_down", "unavailable", "queue_full"}
_LEAVING = {"shutting_down", "unavailable"}
"""Another connection to the same address, a load balancer's, may reach another server."""
LOST = (ssl.SSLEOFError, ConnectionError, TimeoutError)
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_IN_PROGRESS = {0, errno.EINPROGRESS, errno.EWOULDBLOCK, 10035}  # the last is Windows' name for it
_UNIX = getattr(socket, "AF_UNIX", None)
_BACKLOG_WAIT_S = 0.005
"""A Unix socket whose backlog is full, which EAGAIN says, is asked again after this long."""
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_TLS_REASONS = {
    "WRONG_VERSION_NUMBER": "the server does not speak it",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a client's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not trust the client's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the server wants a later version of it",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the server refuses; it may ask for a client's certificate",
}

_Result = TypeVar("_Result")
_Parsed = TypeVar("_Parsed")


class QaClientError(Exception):
    """A question that was not answered; the message is one line for people.

    Attributes:
        code: Stable lower_snake name of the kind; for a `QaServerError`, the server's.
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
    """TLS failed, or one side does not trust the other's certificate."""

    code = "tls_error"


class ConnectionLostError(QaClientError):
    """The server closed the connection before it answered, and so did each server tried."""

    code = "connection_lost"
    retryable = True


class UnreadError(ConnectionLostError):
    """The server refused another question's frame and closed; it did not read this question."""


class RequestTimeoutError(QaClientError):
    """No reply came within `timeout_s`; the request may still run."""

    code = "client_timeout"
    retryable = True


class ProtocolError(QaClientError):
    """A reply that is too large or violates the protocol."""

    code = "protocol_error"


class QaServerError(QaClientError):
    """The server's error answer.

    Attributes:
        retry_after_ms: When to try again; None if the server did not say.
    """

    def __init__(
        self, code: str, message: str, retryable: bool = False, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(code, message, retryable, retry_after_ms)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document of a collection.

    Attributes:
        document: The document's name: its file's path in the folder that was indexed, perhaps with
            `#` and an id.
        heading: The headings above the passage; empty without any.
        start: Where it begins in the document, in Unicode code points.
        end: Where it ends, exclusive.
        line: The line of the file where it begins, from 1; 0 if the file has none.
        page: The answer's page or slide, or that where it begins, from 1; 0 if the file has none.
        place: That, or the sheet and row, in words: "page 3"; empty for other files.
        collection: Its collection, if several were asked; else empty.
    """

    document: str
    title: str
    heading: str
    start: int
    end: int
    text: str
    line: int = 0
    page: int = 0
    place: str = ""
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer stands, in code points; of collections, in which document of which."""

    start: int
    end: int
    document: str = ""
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the text, or of a document of a collection.

    Attributes:
        answer: `text[start:end]`; empty if the text holds no answer.
        score: How sure the model is, in [0, 1].
        start: In code points; None if there is no answer.
        end: Exclusive; None if there is no answer.
        passage: Where in a collection the answer stands; None for a text, or without an answer.
        places: All the places of an answer that stands in several, the best first.
    """

    answer: str
    score: float
    start: int | None
    end: int | None
    passage: Passage | None = field(default=None, kw_only=True)
    places: tuple[Place, ...] = field(default=(), kw_only=True)

    @property
    def known(self) -> bool:
        """Whether the text holds an answer."""
        return self.start is not None


@dataclass(frozen=True, slots=True)
class Answer(Span):
    """The answer to one question.

    Attributes:
        alternatives: The `top_k` best spans, this one included; empty if `top_k` was 1.
        timings_ms: The server's times, by stage (`queue`, `inference`, ...).
        latency_ms: From just before the request was written to its reply's arrival.
        response: The reply as the server sent it.
        passages: Of a collection, without an answer or if they were asked for: the passages that
            were read, in the order of the search.
        unsure: Of a collection, without an answer: up to five that are not sure enough.
    """

    alternatives: tuple[Span, ...]
    timings_ms: dict[str, float]
    latency_ms: float
    response: dict[str, Any] = field(repr=False, compare=False)
    passages: tuple[Passage, ...] = field(default=(), kw_only=True)
    unsure: tuple[Span, ...] = field(default=(), kw_only=True)

    @property
    def model(self) -> str:
        """The model that answered; empty if the server does not say."""
        return str(self.response.get("model", ""))

    @property
    def version(self) -> int | None:
        """Its version; None if the server does not say."""
        return self.response.get("version")


def tls_context(
    ca_file: Path | str | None = None,
    client_cert: Path | str | None = None,
    client_key: Path | str | None = None,
) -> ssl.SSLContext:
    """The `tls` of a `QaClient`: TLS 1.2 or later, with the server's name checked.

    Args:
        ca_file: Certificates in PEM, one of which must have signed the server's; None for the
            system's.
        client_cert: The client's certificate in PEM, for a server that asks for one.
        client_key: Its private key; None if it is in the same file.

    Raises:
        TlsError: A file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise TlsError(
            f"no certificates can be read from {ca_file} ({error_reason(error)})"
        ) from error
    if client_key is not None and client_cert is None:
        raise TlsError("a client's key needs its certificate")
    if client_cert is not None:
        try:
            context.load_cert_chain(client_cert, client_key)
        except OSError as error:
            raise TlsError(
                f"{client_cert} and its key cannot be used ({error_reason(error)})"
            ) from error
    return context


@dataclass(frozen=True, slots=True)
class Health:
    """A server's health.

    Attributes:
        ready: Whether a question sent now can be expected to be answered.
        reason: Why the server is not ready; None if it is.
        report: The server's whole report.
    """

    ready: bool
    reason: str | None
    report: dict[str, Any]


class AskOptions(TypedDict, total=False):
    """How a question is asked; an option that is left out, or None, is left to the server.

    client.py has a flag for each, whose help is what stands here.
    """

    top_k: Annotated[int, "how many answers to return, the best first; 1 if it is left out"]
    timeout_ms: Annotated[float | None, "how long the request may wait in the server's queue"]
    priority: Annotated[int | None, "0 to 9; each step is one more share of the machine"]
    model: Annotated[str | None, "the model or the route to ask"]
    version: Annotated[int | str | None, "a version of the model, by its number or by a label"]
    collection: Annotated[
        str | list[str] | None,
        "the collection that is to answer, in place of a text; several as a,b; * for all",
    ]
    max_passages: Annotated[int | None, "how many passages of the collection are read"]
    passages: Annotated[
        int | None, "how many of these come with the answer; all if there is no answer"
    ]
    filter: Annotated[
        dict[str, Any] | None,
        "which documents of the collection are asked: NAME=VALUE, such as path=policies/, or JSON",
    ]


class QaClient:
    """A client of a QA server, or of several replicas; for any number of threads.

    It connects at the first question, and again when a connection was lost.

    Args:
        host: The server's name or address, with or without `:port`, or the path of its
            `--unix_socket`. Several in a sequence, or with commas between them. Each address of a
            name is a server; names are resolved again from time to time.
        port: The TCP port of hosts without one.
        timeout_s: Longest wait for a connection, and for the next reply on a connection while any
            is outstanding there; None waits for ever. The default is longer than a server's queue
            timeout, so that a full server's own error arrives.
        max_response_bytes: Longest reply accepted.
        tls: The context of a TLS connection, see `tls_context`; None for plain TCP.
        token: Sent on each connection before the first question.
        with_hedging: Asks a second server too when the first has not replied within the time of 95
            % of its replies. The first reply counts.

    Raises:
        ValueError: There is no host, or a port is out of range.
    """

    def __init__(
        self,
        host: str | Sequence[str] = "localhost",
        port: int = 9999,
        timeout_s: float | None = 60.0,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        with_hedging: bool = False,
    ) -> None:
        terms = Terms(math.inf if timeout_s is None else timeout_s, max_response_bytes, tls, token)
        self._servers = Servers(split_hosts(host, port), terms, with_hedging)
        # Never reused, not even on a new connection.
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connects to a server now rather than at the next question, if there is no connection.

        Raises:
            QaClientError: No server could be reached, trusted, or accepted the client.
        """
        _Call(self._servers).connect()

    def close(self) -> None:
        """Closes the unused connections; the client may be used again."""
        self._servers.close()

    def ask(self, question: str, text: str | None = None, **options: Unpack[AskOptions]) -> Answer:
        """Asks one question and waits for its answer.

        Args:
            text: The text that should hold the answer; None if a collection is asked.
            options: See `AskOptions`.

        Raises:
            QaServerError: The server answered with an error.
            QaClientError: There was no answer, or it was malformed.
        """
        [result] = self.ask_many([(question, text)], **options)
        if isinstance(result, QaClientError):
            raise result
        return result

    def ask_many(
        self,
        pairs: Iterable[tuple[str, str | None]],
        *,
        max_in_flight: int = 32,
        **options: Unpack[AskOptions],
    ) -> list[Answer | QaClientError]:
        """Asks many questions, several in flight at a time.

        A question that fails leaves its error in its place and does not affect the others. Those
        not yet sent fail too when, without a reply between, more connections than there are servers
        were lost or could not be made.

        Args:
            pairs: Question and text of each request, the text None if a collection is asked; taken
                when there is room to send.
            options: See `AskOptions`.

        Returns:
            For each pair, in their order, its answer or its error.

        Raises:
            ValueError: `max_in_flight` is less than 1.
        """
        if max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        fields = option_fields(options)
        requests = (
            (next(self._ids), {**question_fields(question, text), **fields})
            for question, text in pairs
        )
        return _Call(self._servers).run(requests, read_answer, max_in_flight)

    def health(self) -> Health:
        """Asks for a server's health; it answers at once, even with a full queue.

        Raises:
            QaClientError: There was no answer, or it was malformed.
        """
        report = self._query("health", dict)
        match report:
            case {"ready": bool(ready), "reason": str() | None as reason}:
                return Health(ready, reason, report)
        raise ProtocolError("the server sent a report of its health without ready or reason")

    def stats(self) -> dict[str, Any]:
        """Asks for a server's `counters`, `gauges` and `histograms`, by name.

        Raises:
            QaClientError: There was no answer, or it was malformed.
        """
        return self._query("stats", dict)

    def models(self) -> list[dict[str, Any]]:
        """Asks for the versions of a server's models, and their state.

        Raises:
            QaClientError: There was no answer, or it was malformed.
        """
        return self._query("models", list)

    def _query(self, query: str, kind: type[_Result]) -> _Result:
        def report(reply: dict[str, Any], _latency_ms: float) -> _Result:
            found = reply.get(query)
            if not isinstance(found, kind):
                raise ProtocolError(f"the server sent a reply without {query}")
            return found

        requests = iter([(next(self._ids), {"type": query})])
        result: _Result | QaClientError
        [result] = _Call(self._servers).run(requests, report, 1)
        if isinstance(result, QaClientError):
            raise result
        return result


def split_hosts(host: str | Sequence[str], port: int) -> list[tuple[str, int]]:
    """The names and ports of `a,b:9998,[::1]:9999`, or of such words in a sequence.

    Args:
        host: Names or addresses, each with or without a port.
        port: The port of those without one.

    Raises:
        ValueError: There is no host, or a port is out of range.
    """
    found = []
    for word in host.split(",") if isinstance(host, str) else host:
        name, colon, number = word.strip().rpartition(":")
        if colon and number.isdecimal() and (":" not in name or name.endswith("]")):
            found.append((name.strip("[]"), int(number)))
        else:
            found.append((word.strip().strip("[]"), port))
    # A name that begins with a slash is a Unix socket's path.
    if any("/" in name and not name.startswith("/") for name, _ in found):
        raise ValueError(f"{host!r} is a URL; a name is needed, as in localhost or a:9998")
    # One colon ends a name without its port; an address of IPv6 has more.
    if not found or not all(
        name and 0 < number < 1 << 16 and (name.count(":") != 1 or name.startswith("/"))
        for name, number in found
    ):
        raise ValueError(f"{host!r} does not name servers and their ports")
    return found


@dataclass(slots=True, eq=False)
class Asked:
    """A request in flight in a conversation.

    Attributes:
        id: In the frame; used once in a conversation.
    """

    id: int
    frame: bytes
    sent_s: float = field(default=-math.inf, init=False)

    def read(self, reply: Any, now_s: float) -> Any:  # noqa: ANN401 - as the conversation's replies
        """The result of the request's reply.

        Raises:
            ValueError: The reply is malformed, which ends the conversation.
            ProtocolError: Likewise.
        """
        raise NotImplementedError


Settled = tuple[Any, Any, bool]
"""The end of a request: the `Asked`, what it made of its reply or why there is none, and whether
there is none. A plain tuple: the load generator makes one for each answer."""


class Reply(NamedTuple):
    """A reply, as a conversation needs it."""

    id: Any
    closing: bool
    error: QaServerError | None
    fields: dict[str, Any]


class Conversation:
    """The client's side of one connection, without a socket and a clock.

        new ──begin──▶ authenticating, with a token ──▶ open ──end──▶ ended

    Bytes that were received and the time go in; settled requests and bytes to be sent come out. A
    request that is asked before it is open is sent when it opens. Each is settled once, unless it
    is withdrawn. What ends a conversation, also a reply that cannot be read, settles all of it:
    the holder has only to look at `is_over`, and to close the socket.

    An error that names no request is taken for that of the last one in flight: the server reads no
    further. If it is `frame_too_large`, the longest frame is over the limit, and the other requests
    were not read (`UnreadError`).

    Args:
        replies: Takes the complete replies out of the bytes received; each has `id`, `closing` and
            `error`.

    Attributes:
        in_flight: The requests that wait for a reply, by id.
        error: Why it has ended.
        refusal: The server's error that named no request: the server is about to close.
        was_open: Whether the server has accepted the client.
        is_leaving: Whether the server takes no more requests here.
        is_blocked: The holder's: whether its socket takes no more bytes now.
    """

    def __init__(
        self,
        server: Server,
        terms: Terms,
        now_s: float,
        replies: Callable[[bytearray], Iterable[Any]] | None = None,
    ) -> None:
        self.server = server
        self.in_flight: dict[Any, Any] = {}
        self.error: QaClientError | None = None
        self.refusal: QaServerError | None = None
        self.was_open = self.is_leaving = self.is_blocked = False
        self._terms = terms
        self._replies = replies or self._json_replies
        self._is_authenticating = False
        self._opens_by_s = now_s + min(CONNECT_TIMEOUT_S, terms.timeout_s)
        self._heard_s = now_s
        self._withdrawn: set[Any] = set()
        self._inbox = bytearray()
        self._outbox: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """Whether requests are sent at once."""
        return self.was_open and self.error is None

    @property
    def takes_more(self) -> bool:
        """Whether further requests may be asked."""
        return not (self.error or self.is_leaving or self.refusal)

    @property
    def is_over(self) -> bool:
        """Whether its connection can be closed."""
        return self.error is not None or (self.is_leaving and not self.in_flight)

    @property
    def is_free(self) -> bool:
        """Whether it is open and nothing is outstanding."""
        owed = self.in_flight or self._withdrawn or self._inbox
        return self.is_open and self.takes_more and not (owed or self.is_blocked)

    @property
    def has_bytes(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._outbox)

    @property
    def due_s(self) -> float:
        """When `check_time` ends it, unless something comes before."""
        if self.error is not None:
            return math.inf
        if not self.was_open:
            return self._opens_by_s
        is_owed = self.in_flight or self._withdrawn
        return self._heard_s + self._terms.timeout_s if is_owed else math.inf

    def begin(self) -> None:
        """Bytes can be exchanged from now on."""
        if self._terms.token is None:
            self._open()
        else:
            self._is_authenticating = True
            self._outbox.append(encode_frame({"type": "auth", "token": self._terms.token}))

    def ask(self, asked: Asked, now_s: float) -> None:
        """Asks, unless it has ended."""
        if not (self.in_flight or self._withdrawn):
            self._heard_s = now_s
        asked.sent_s = now_s
        self.in_flight[asked.id] = asked
        if self.was_open:
            self._outbox.append(asked.frame)

    def withdraw(self, asked_id: int, *, in_silence: bool = False) -> None:
        """Drops a request; its reply is ignored. The server drops it too, except in silence."""
        if self.in_flight.pop(asked_id, None) is not None and self.was_open:
            self._withdrawn.add(asked_id)
            if not in_silence:
                self._outbox.append(encode_frame({"type": "cancel", "id": asked_id}))

    def bytes_to_send(self) -> bytes:
        """Takes the bytes that are to be sent."""
        outbox, self._outbox = self._outbox, []
        return outbox[0] if len(outbox) == 1 else b"".join(outbox)

    def receive(self, data: bytes, now_s: float) -> list[Settled]:
        """Takes received bytes; returns what they settle."""
        settled: list[Settled] = []
        self._inbox += data
        try:
            if self._is_authenticating:
                self._take_auth_reply()
            if self.is_open:
                for reply in self._replies(self._inbox):
                    reply_id = reply.id if isinstance(reply.id, int) else None
                    if reply.closing is True:
                        self.is_leaving = True
                    if (asked := self.in_flight.get(reply_id)) is not None:
                        settled.append((asked, asked.read(reply, now_s), False))
                        del self.in_flight[reply_id]
                    elif reply_id in self._withdrawn:
                        self._withdrawn.remove(reply_id)
                    elif reply.id is None and reply.error is not None:
                        self.refusal = reply.error
                    else:
                        raise ProtocolError("the server replied to a question that was not asked")
                    self._heard_s = now_s
        except QaClientError as error:
            settled += self.end(error)
        except (ValueError, RecursionError) as error:
            settled += self.end(ProtocolError(f"the server sent an invalid reply: {error}"))
        if self.refusal is not None and len(self.in_flight) <= 1:
            settled += self.end(self.refusal)
        return settled

    def check_time(self, now_s: float) -> list[Settled]:
        """Ends it if it was not opened, or nothing was replied, in time."""
        if now_s < self.due_s:
            return []
        if not self.was_open:
            words = f"no server can be reached at {self.server} in time"
            return self.end(ServerUnreachableError(words))
        words = f"the server did not reply within {self._terms.timeout_s:g} s"
        return self.end(RequestTimeoutError(words))

    def end(self, error: QaClientError) -> list[Settled]:
        """Ends it; what is in flight fails with the error, or with that of the server."""
        if self.error is not None:
            return []
        self.error = self.refusal or error
        failed = list(self.in_flight.values())
        self.in_flight.clear()
        self._withdrawn.clear()
        self._outbox.clear()
        if self.error.code != "frame_too_large" or not failed:
            return [(asked, copied(self.error), True) for asked in failed]
        guilty = max(failed, key=lambda asked: len(asked.frame))
        return [
            (asked, self.error if asked is guilty else UnreadError(str(error)), True)
            for asked in failed
        ]

    def _take_auth_reply(self) -> None:
        for body in take_frames(self._inbox, self._terms.max_response_bytes):
            reply = decode_reply(body)
            if "error" in reply:
                raise server_error(reply["error"])
            if reply.get("auth") != "ok":
                raise ProtocolError("the server did not reply to the token")
            self._is_authenticating = False
            self._open()
            return

    def _open(self) -> None:
        self.was_open = True
        self._outbox += [asked.frame for asked in self.in_flight.values()]

    def _json_replies(self, inbox: bytearray) -> Iterator[Reply]:
        for body in take_frames(inbox, self._terms.max_response_bytes):
            fields = decode_reply(body)
            error = server_error(fields["error"]) if "error" in fields else None
            yield Reply(fields.get("id"), fields.get("closing") is True, error, fields)


@dataclass(slots=True, eq=False)
class Question:
    """What a client asks, of whichever server.

    Attributes:
        id: Never used again by its client.
        read: Makes the result of a reply's fields and its latency in milliseconds.
        about: The asker's.
        tried: Servers it was sent to, in order.
        copies: Those in flight: one, or two if it is hedged.
    """

    id: int
    frame: bytes
    read: Callable[[dict[str, Any], float], Any]
    about: Any
    started_s: float = math.inf
    tried: list[Server] = field(default_factory=list)
    copies: list[_Copy] = field(default_factory=list)
    is_settled: bool = False


@dataclass(slots=True, eq=False)
class _Copy(Asked):
    """A question in flight at one server."""

    question: Question
    conversation: Conversation

    def read(self, reply: Reply, now_s: float) -> Any:  # noqa: ANN401
        latency_ms = (now_s - self.question.started_s) * 1e3
        return reply.error or self.question.read(reply.fields, latency_ms)


class Asking:
    """Where questions are sent, when again, and when no more; without sockets and a clock.

        waiting ──▶ in flight at a server, or at two ──▶ settled
           ▲─── at once, or after a time ───┘

    Whoever holds the conversations moves their bytes, and gives `take` what each settles.

    Args:
        connect: Begins a connection to a server.

    Attributes:
        settled: Questions and their results, a `QaClientError` among them, for the holder to take.
        num_pending: Questions asked and not settled.
        num_losses: Connections that were lost, or could not be made.
    """

    def __init__(self, servers: Servers, connect: Callable[[Server], Conversation]) -> None:
        self.settled: list[tuple[Question, Any]] = []
        self.num_pending = self.num_losses = 0
        self._num_forgiven = 0
        self._last_loss: QaClientError | None = None
        self._servers = servers
        self._connect = connect
        self._current: dict[Server, Conversation] = {}
        self._waiting: deque[Question] = deque()
        # When to send a question again or, to hedge it, to a second server; the number orders them.
        self._timers: list[tuple[float, int, Question, bool]] = []
        self._numbers = itertools.count()

    @property
    def num_waiting(self) -> int:
        """Questions that are sent as soon as there is room."""
        return len(self._waiting)

    @property
    def due_s(self) -> float:
        """When `advance` has something to do."""
        return self._timers[0][0] if self._timers else math.inf

    def check_losses(self, begun_at: int = 0) -> None:
        """Raises the last, if there were more than servers after `begun_at` and the last reply."""
        num_since = self.num_losses - max(begun_at, self._num_forgiven)
        if self._last_loss is not None and num_since > len(self._servers):
            raise copied(self._last_loss)

    def ask(self, question: Question) -> None:
        """Takes a question; `advance` sends it."""
        self.num_pending += 1
        self._waiting.append(question)

    def withdraw(self, question: Question) -> None:
        """Drops a question that nobody waits for any more."""
        for copy in self._finish(question):
            self._servers.count(copy.conversation.server, -1)

    def fail_waiting(self, error: QaClientError) -> None:
        """Settles the questions that wait for a server."""
        while self._waiting:
            self._settle(self._waiting.popleft(), error, 0.0)

    def conversation(self, server: Server) -> Conversation:
        """The conversation with a server that takes questions; a new one if there is none."""
        found = self._current.get(server)
        if found is None or not found.takes_more:
            found = self._current[server] = self._connect(server)
        return found

    def advance(self, now_s: float) -> None:
        """Sends what can go and what is due."""
        for server in [its for its in self._current if its not in self._servers]:
            self._current.pop(server).is_leaving = True  # its name is gone
        while self.due_s <= now_s:
            _, _, question, is_hedge = heapq.heappop(self._timers)
            if question.is_settled:
                continue
            if not is_hedge:
                self._waiting.append(question)
            elif len(question.copies) == 1:
                other = self._servers.choose(self._blocked() | set(question.tried), now_s)
                if other is not None:
                    self._send(question, other, now_s)
        while self._waiting:
            question = self._waiting[0]
            if not question.is_settled:
                avoid = self._blocked() | self._servers.to_avoid(question.tried)
                best = self._servers.choose(avoid, now_s)
                if best is None:
                    return
                self._send(question, best, now_s)
            self._waiting.popleft()

    def take(self, conversation: Conversation, settled: Iterable[Settled], now_s: float) -> None:
        """Takes what a conversation has settled; once more when the conversation has ended."""
        server = conversation.server
        lost = []
        for copy, result, was_lost in settled:
            question = copy.question
            question.copies.remove(copy)
            if was_lost:
                lost.append((question, result))
                continue
            self._num_forgiven = self.num_losses
            refusal = result if isinstance(result, QaServerError) else None
            if self._servers.count_reply(server, now_s - copy.sent_s, now_s, refusal):
                conversation.is_leaving = True
            if refusal is None:
                self._settle(question, result, now_s)
            else:
                self._fail(question, refusal, now_s)
        if lost:
            self._servers.count(server, -len(lost))
        error = conversation.error
        # Neither its holder's end nor a frame that is too large says that the server is ill.
        is_closed = error is None or error.code in {QaClientError.code, "frame_too_large"}
        if error is not None and not is_closed and (lost or not conversation.was_open):
            self.num_losses += 1
            self._last_loss = error
            if not isinstance(error, QaServerError):  # else it is there, and refuses
                self._servers.rest(server, now_s)
        for question, failure in lost:
            if isinstance(failure, UnreadError):
                question.tried.remove(server)
            self._fail(question, failure, now_s)

    def _blocked(self) -> set[Server]:
        """The servers whose conversations take nothing now."""
        return {its for its, held in self._current.items() if held.takes_more and held.is_blocked}

    def _send(self, question: Question, server: Server, now_s: float) -> None:
        conversation = self.conversation(server)
        copy = _Copy(question.id, question.frame, question, conversation)
        question.started_s = min(question.started_s, now_s)
        question.tried.append(server)
        question.copies.append(copy)
        self._servers.count(server, 1)
        conversation.ask(copy, now_s)
        hedge_after_s = self._servers.hedge_after_s(server)
        if hedge_after_s is not None:
            self._set_timer(now_s + hedge_after_s, question, is_hedge=True)

    def _set_timer(self, due_s: float, question: Question, *, is_hedge: bool = False) -> None:
        heapq.heappush(self._timers, (due_s, next(self._numbers), question, is_hedge))

    def _fail(self, question: Question, error: QaClientError, now_s: float) -> None:
        """Sends a failed question again, or settles it with the error."""
        if question.copies:  # the other server may still answer
            return
        if isinstance(error, UnreadError):
            self._waiting.append(question)
            return
        deadline_s = question.started_s + self._servers.terms.timeout_s
        pause_s = self._servers.resend_after_s(question.tried, error, now_s, deadline_s)
        if pause_s is None:
            self._settle(question, error, now_s)
        elif pause_s:
            self._set_timer(now_s + pause_s, question)
        else:
            self._waiting.append(question)

    def _settle(self, question: Question, result: Any, now_s: float) -> None:  # noqa: ANN401
        if not question.is_settled:
            self.settled.append((question, result))
        for copy in self._finish(question):
            server = copy.conversation.server
            self._servers.count(server, -1)
            if server.replied_s < copy.sent_s:  # it was silent, and another one answered
                self._servers.rest(server, now_s)

    def _finish(self, question: Question) -> list[_Copy]:
        """Ends a question; returns its copies, which it withdraws."""
        self.num_pending -= not question.is_settled
        question.is_settled = True
        copies, question.copies = question.copies, []
        for copy in copies:
            copy.conversation.withdraw(question.id)
        return copies


class _Call:
    """The questions of one call, and its connections, which no other call uses meanwhile."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._asking = Asking(servers, self._connect)
        self._streams: list[Stream] = []

    def run(
        self,
        requests: Iterator[tuple[int, dict[str, Any]]],
        read: Callable[[dict[str, Any], float], Any],
        max_in_flight: int,
    ) -> list[Any]:
        """Asks all requests, ids and fields; returns results, or their errors, in this order."""
        asking = self._asking
        results: dict[int, Any] = {}
        num_taken = 0
        try:
            while True:
                if self._streams or asking.num_pending:
                    self._flush()
                results.update((question.about, result) for question, result in asking.settled)
                asking.settled.clear()
                has_room = not asking.num_waiting and asking.num_pending < max_in_flight
                if has_room and (request := next(requests, None)) is not None:
                    wire_id, fields = request
                    try:
                        asking.check_losses()
                        frame = encode_frame({"id": wire_id, **fields})
                    except QaClientError as error:
                        results[num_taken] = error
                    else:
                        asking.ask(Question(wire_id, frame, read, num_taken))
                    num_taken += 1
                elif asking.num_pending:
                    self._exchange()
                else:
                    return [results[index] for index in range(num_taken)]
        finally:
            # After an interrupt, a connection with outstanding replies is closed, not kept.
            self._servers.give_back(self._streams)

    def connect(self) -> None:
        """Opens a connection to the first server that accepts the client, and keeps it.

        Raises:
            QaClientError: No server does; the error of the last one.
        """
        failed: list[Server] = []
        failure: QaClientError = ServerUnreachableError("there is no server")
        self._servers.look_up(time.perf_counter())
        while (server := self._servers.choose(failed, time.perf_counter())) is not None:
            conversation = self._asking.conversation(server)
            self._flush()
            while not conversation.is_open and conversation.error is None:
                self._exchange()
            if conversation.error is None:
                self._servers.give_back(self._streams)
                return
            failure = conversation.error
            failed.append(server)
        raise failure

    def _connect(self, server: Server) -> Conversation:
        stream = self._servers.idle_stream(server)
        if stream is None:
            conversation = Conversation(server, self._servers.terms, time.perf_counter())
            stream = Stream(conversation, self._servers.terms)
        self._streams.append(stream)
        return stream.conversation

    def _flush(self) -> None:
        """Sends what can go, elsewhere if a connection fails at once."""
        now_s, has_failed = time.perf_counter(), True
        while has_failed:
            if self._asking.num_waiting:
                try:
                    self._servers.look_up(now_s)
                except ServerUnreachableError as error:
                    self._asking.fail_waiting(error)
            self._asking.advance(now_s)
            has_failed = False
            for stream in list(self._streams):
                self._take(stream, stream.flush(), now_s)
                has_failed |= stream.conversation.error is not None

    def _exchange(self) -> None:
        """Waits for sockets and the time, then sends and receives."""
        due_s = min([self._asking.due_s, *(its.conversation.due_s for its in self._streams)])
        wait_s = None if due_s == math.inf else max(0.0, due_s - time.perf_counter())
        with _Selector() as selector:
            for stream in self._streams:
                selector.register(stream.socket, stream.events, stream)
            ready = [key.data for key, _ in selector.select(wait_s)]
        now_s = time.perf_counter()
        for stream in ready:
            self._take(stream, stream.exchange(now_s), now_s)
        if now_s >= due_s:
            for stream in list(self._streams):
                self._take(stream, stream.conversation.check_time(now_s), now_s)

    def _take(self, stream: Stream, settled: list[Settled], now_s: float) -> None:
        if settled or stream.conversation.error is not None:
            self._asking.take(stream.conversation, settled, now_s)
        if stream.conversation.is_over:
            stream.close()
            self._streams.remove(stream)


class Terms(NamedTuple):
    """Bounds and credentials of a client's connections."""

    timeout_s: float
    max_response_bytes: int
    tls: ssl.SSLContext | None
    token: str | None


# A family and an address in it, as in `socket.getaddrinfo`.
Address = tuple[int, Any]


@dataclass(slots=True, eq=False)
class Server:
    """The state of one server, shared by all threads; only `Servers` changes it.

    Attributes:
        host: Its certificate must name it.
        addresses: Tried in turn.
        in_flight: Requests sent to it, neither answered nor given up.
        failures: Failures since its last reply.
        rests_until_s: Until then, other servers are preferred.
        idle: Connections that no call uses.
    """

    host: str
    port: int
    addresses: tuple[Address, ...]
    in_flight: int = 0
    failures: int = 0
    rests_until_s: float = -math.inf
    replied_s: float = -math.inf
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    idle: list[Stream] = field(default_factory=list)

    def __str__(self) -> str:
        return self.host if self.host.startswith("/") else f"{self.host}:{self.port}"


class Servers:
    """The servers of a client and their state, shared by its threads."""

    def __init__(self, hosts: Sequence[tuple[str, int]], terms: Terms, with_hedging: bool) -> None:
        self.terms = terms
        self._hosts = hosts
        self._with_hedging = with_hedging
        self._lock = threading.Lock()
        self._known: dict[tuple[Address, ...], Server] = {}
        self._look_up_at_s = -math.inf

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, server: Server) -> bool:
        return self._known.get(server.addresses) is server

    def choose(self, avoid: Container[Server], now_s: float) -> Server | None:
        """The server for the next request; None if all are to be avoided."""
        with self._lock:
            left = [server for server in self._known.values() if server not in avoid]
            if not left:
                return None
            rested = [server for server in left if server.rests_until_s <= now_s]
            if not rested:
                return min(left, key=lambda server: server.rests_until_s)
            if len(rested) == 1:
                return rested[0]
            return min(random.sample(rested, 2), key=lambda server: server.in_flight)

    def idle_stream(self, server: Server) -> Stream | None:
        """An open, unused connection to the server, if there is one."""
        while True:
            with self._lock:
                if not server.idle:
                    return None
                stream = server.idle.pop()
            if stream.is_quiet():
                return stream
            stream.close()

    def give_back(self, streams: Iterable[Stream]) -> None:
        """Keeps the reusable connections, and closes the others."""
        for stream in streams:
            conversation = stream.conversation
            server = conversation.server
            with self._lock:
                server.in_flight -= len(conversation.in_flight)
                if conversation.is_free and server in self:
                    server.idle.append(stream)
                    continue
            stream.close()

    def close(self) -> None:
        """Closes the unused connections."""
        with self._lock:
            for server in self._known.values():
                _close_idle(server)

    def count(self, server: Server, number: int) -> None:
        """Counts requests sent to the server or, negative, those whose reply is not awaited."""
        with self._lock:
            server.in_flight += number

    def count_reply(
        self, server: Server, latency_s: float, now_s: float, error: QaServerError | None = None
    ) -> bool:
        """Counts a reply of the server; returns whether its connection takes no more questions."""
        with self._lock:
            server.in_flight -= 1
            server.failures = 0
            server.replied_s = now_s
            server.latencies_s.append(latency_s)
        is_leaving = error is not None and error.code in _LEAVING
        if is_leaving:
            self.rest(server, now_s)
        return is_leaving

    def rest(self, server: Server, now_s: float) -> None:
        """Avoids a failed server for a time; failures meanwhile count as the same one."""
        with self._lock:
            if now_s >= server.rests_until_s:
                rest_s = min(_MAX_REST_S, _MIN_REST_S * 2 ** min(server.failures, 16))
                server.failures += 1
                server.rests_until_s = now_s + rest_s * random.uniform(1.0, 1.5)
            self._look_up_at_s = min(self._look_up_at_s, now_s + 1.0)

    def to_avoid(self, tried: Sequence[Server]) -> set[Server]:
        """The servers that have had a request, unless all have."""
        had = set(tried)
        return had if len(had) < len(self) else set()

    def resend_after_s(
        self, tried: Sequence[Server], error: QaClientError, now_s: float, deadline_s: float
    ) -> float | None:
        """How long to wait before sending a request again; None not to send it."""
        has_others = len(set(tried)) < len(self)
        if error.code not in _RESENT or len(tried) >= len(self) + _MORE_TRIES:
            return None
        if has_others:
            return 0.0
        if error.code == "server_unreachable":
            return None
        retry_after_ms = getattr(error, "retry_after_ms", None) or 0.0
        # Clients refused together get the same time; they must not all come back at once.
        pause_s = float(retry_after_ms) / 1e3 * random.uniform(1.0, 1.5)
        # Behind a load balancer, a killed server may accept connections until it is gone.
        pause_s = max(pause_s, tried[-1].rests_until_s - now_s)
        return pause_s if now_s + pause_s < deadline_s else None

    def hedge_after_s(self, server: Server) -> float | None:
        """After how long to ask a second server too; None for never."""
        with self._lock:
            if not self._with_hedging or len(server.latencies_s) < _MIN_LATENCIES:
                return None
            return sorted(server.latencies_s)[int(0.95 * len(server.latencies_s))]

    def is_look_up_due(self, now_s: float) -> bool:
        """Whether `look_up` would look up names, which may block."""
        return now_s >= self._look_up_at_s

    def look_up(self, now_s: float) -> None:
        """Looks up the names when their addresses are old; keeps these if a look-up fails.

        Raises:
            ServerUnreachableError: None of the names has an address.
        """
        with self._lock:
            if now_s < self._look_up_at_s:
                return
            if self._known:  # the other threads use these meanwhile
                self._look_up_at_s = now_s + _RESOLVE_INTERVAL_S
        found: list[Server] = []
        failure: ServerUnreachableError | None = None
        for host, port in self._hosts:
            try:
                servers = look_up(host, port)
            except (OSError, UnicodeError) as error:
                failure = unreachable(f"{host}:{port}", error)
            else:
                found += [Server(host, port, addresses) for addresses in servers]
        with self._lock:
            before = self._known
            self._known = {} if failure is None else dict(before)
            for server in found:  # a known one keeps its state
                self._known[server.addresses] = before.get(server.addresses, server)
            for addresses in before.keys() - self._known.keys():
                _close_idle(before[addresses])
            if not self._known and failure is not None:
                raise failure
            self._look_up_at_s = now_s + _RESOLVE_INTERVAL_S


def look_up(host: str, port: int) -> list[tuple[Address, ...]]:
    """The servers behind a name, each as its addresses.

    Each address is a server. But if no family has two, as with `localhost`, they are one server's,
    one in each family.

    A path, which begins with a slash, is that of a Unix socket.

    Raises:
        OSError: The name has no address.
        UnicodeError: The name is not valid.
    """
    if host.startswith("/"):
        return [((int(socket.AF_UNIX), host),)]
    families: dict[int, list[Address]] = defaultdict(list)
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if (family, address) not in families[family]:
            families[family].append((int(family), address))
    most = max(families.values(), key=len)
    if len(most) == 1:
        return [tuple(address for [address] in families.values())]
    return [(address,) for address in most]


def _close_idle(server: Server) -> None:
    while server.idle:
        server.idle.pop().close()


class Stream:
    """A conversation over a non-blocking socket, which is opened step by step.

        connecting ──▶ securing, with TLS ──▶ exchanging

    Attributes:
        socket: From the first `flush` on; replaced when the first address fails.
    """

    def __init__(self, conversation: Conversation, terms: Terms) -> None:
        self.conversation = conversation
        self.socket: socket.socket
        self._terms = terms
        self._server = conversation.server
        self._addresses = iter(self._server.addresses)
        self._full_address: Any = None
        self._has_begun = self._is_securing = False
        self._opening_events = 0  # as long as it connects and secures
        self._outbox = bytearray()  # what the socket has not taken

    @property
    def events(self) -> int:
        """The events to wait for."""
        if self._opening_events:
            return self._opening_events
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)

    def is_quiet(self) -> bool:
        """Whether an idle connection is still open and has received nothing."""
        try:
            self.socket.recv(1)  # a connection that received anything is closed
        except _AGAIN:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Closes the socket, if there is one."""
        if self._has_begun:
            self.socket.close()

    def flush(self) -> list[Settled]:
        """Sends what the socket takes at once; begins to connect at first."""
        if not self._has_begun:
            self._has_begun = True
            try:
                self._connect(OSError("it has no address"))
            except QaClientError as error:
                return self.conversation.end(error)
        if not self._opening_events:
            self._send()
        self.conversation.is_blocked = bool(self._opening_events or self._outbox)
        return []

    def exchange(self, now_s: float) -> list[Settled]:
        """Continues opening, sends and receives; returns what is settled."""
        try:
            if self._opening_events and not self._is_opened():
                return []
            if self._outbox:
                self._send()
            settled = self._receive(now_s)
        except QaClientError as error:
            return self.conversation.end(error)
        if self.conversation.has_bytes:
            self._send()
        self.conversation.is_blocked = bool(self._outbox)
        return settled

    def _connect(self, error: OSError) -> None:
        """Begins to connect to the next address; raises the last error if there is none."""
        for family, address in self._addresses:
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
            except OSError as failure:  # no descriptor is left
                error = failure
                continue
            self.socket.setblocking(False)
            try:
                code = self.socket.connect_ex(address)
            except OSError:  # the path of a Unix socket, which the system has not seen
                code = errno.ENAMETOOLONG
            is_full = code == errno.EAGAIN and family == _UNIX
            self._full_address = address if is_full else None
            if code in _IN_PROGRESS:
                self._opening_events = selectors.EVENT_WRITE
                return
            self.socket.close()
            error = OSError(code, os.strerror(code))
        self._has_begun = False  # there is no socket
        raise unreachable(self._server, error) from error

    def _is_opened(self) -> bool:
        """Continues opening; returns whether bytes can be exchanged."""
        if not self._is_securing and not self._is_connected():
            return False
        if isinstance(self.socket, ssl.SSLSocket):
            try:
                self.socket.do_handshake()
            except ssl.SSLWantReadError:
                self._opening_events = selectors.EVENT_READ
                return False
            except ssl.SSLWantWriteError:
                self._opening_events = selectors.EVENT_WRITE
                return False
            except (OSError, ValueError) as error:
                raise tls_failure(self._server, error) from error
        self._opening_events = 0
        self.conversation.begin()
        return True

    def _is_connected(self) -> bool:
        if self._full_address is not None:
            code = self.socket.connect_ex(self._full_address)
            if code == errno.EAGAIN:  # no event says when there is room
                time.sleep(_BACKLOG_WAIT_S)
                return False
            self._full_address = None
        else:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.socket.close()
            self._connect(OSError(code, os.strerror(code)))
            return False
        if self.socket.family in {socket.AF_INET, socket.AF_INET6}:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._terms.tls is not None:
            try:
                self.socket = self._terms.tls.wrap_socket(
                    self.socket, server_hostname=self._server.host, do_handshake_on_connect=False
                )
            except (OSError, ValueError) as error:
                raise TlsError(f"no TLS with {self._server}: {tls_reason(error)}") from error
            self._is_securing = True
        return True

    def _send(self) -> None:
        data: bytes | bytearray = self.conversation.bytes_to_send()
        if self._outbox:
            self._outbox += data
            data = self._outbox
        elif not data:
            return
        try:
            sent = self.socket.send(data)
        except _AGAIN:
            sent = 0
        except OSError:
            # The server has closed, but its last reply may still arrive: keep reading.
            self.conversation.is_leaving = True
            self._outbox.clear()
            return
        if data is self._outbox:
            del self._outbox[:sent]
        elif sent < len(data):
            self._outbox += data[sent:]

    def _receive(self, now_s: float) -> list[Settled]:
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except _AGAIN:
            return []
        except ssl.SSLEOFError:
            data = b""
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from error
        except OSError:
            data = b""
        if not data:
            raise ConnectionLostError("the server closed the connection before it answered")
        return self.conversation.receive(data, now_s)


def copied(error: QaClientError) -> QaClientError:
    """Copies an error to raise it again: the traceback of a shared one would grow."""
    return type(error)(*error.args)


def error_reason(error: Exception) -> str:
    """The reason of an error, without its number."""
    if isinstance(error, ssl.SSLError):
        return "not certificates and keys in PEM, or not a pair"
    return str(getattr(error, "strerror", None) or error)


def unreachable(server: object, error: Exception) -> ServerUnreachableError:
    """The error of a server to which no connection could be made."""
    return ServerUnreachableError(f"no server can be reached at {server} ({error_reason(error)})")


def tls_failure(server: object, error: Exception) -> QaClientError:
    """The error of a server with which no TLS could be agreed on."""
    kind = ServerUnreachableError if isinstance(error, LOST) else TlsError
    return kind(f"no TLS with {server}: {tls_reason(error)}")


def tls_reason(error: Exception) -> str:
    """Why TLS failed, in words for people."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted ({error.verify_message})"
        case ssl.SSLEOFError() | ConnectionResetError():
            return "the server closed the connection"
        case ssl.SSLError(reason=str(reason)):
            return _TLS_REASONS.get(reason, reason.lower().replace("_", " "))
    return error_reason(error)


def encode_frame(fields: dict[str, Any]) -> bytes:
    """The frame of a request; `InvalidRequestError` if it cannot be written as JSON in UTF-8."""
    try:
        return frame_of(_to_json(fields).encode())
    except (TypeError, ValueError, struct.error) as error:
        raise InvalidRequestError(f"the request cannot be sent: {error}") from error


def frame_of(body: bytes) -> bytes:
    """A body behind its length."""
    return _LENGTH.pack(len(body)) + body


def take_frames(inbox: bytearray, max_bytes: int) -> Iterator[bytes]:
    """Takes the complete frames' bodies out of what came; `ProtocolError` if one is too long."""
    while len(inbox) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(inbox)
        if length > max_bytes:
            words = f"a reply of {length} bytes, or is no QA server"  # HTTP's first four are that
            raise ProtocolError(f"the server sent {words}")
        end = _LENGTH.size + length
        if len(inbox) < end:
            return
        body = bytes(inbox[_LENGTH.size : end])
        del inbox[:end]
        yield body


def decode_reply(body: bytes) -> dict[str, Any]:
    """The reply in a frame's body; `ProtocolError` if that is not a JSON object."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the server sent a reply that is not UTF-8 JSON") from error
    if not isinstance(reply, dict):
        raise ProtocolError("the server sent a reply that is not a JSON object")
    return reply


def server_error(value: object) -> QaServerError:
    """The `error` of a reply; `ProtocolError` if it is malformed."""
    match value:
        case {"code": str(code), "message": str(message), "retryable": bool(retryable), **rest}:
            retry_after_ms: Any = rest.get("retry_after_ms")
            return QaServerError(code, message, retryable, retry_after_ms)
    raise ProtocolError("the server sent an error without code, message or retryable")


def question_fields(question: str, text: str | None) -> dict[str, Any]:
    """The fields of a question, without those that are not given."""
    return {"question": question} if text is None else {"question": question, "text": text}


def option_fields(options: AskOptions) -> dict[str, Any]:
    """The fields of a question's options; `TypeError` if one is no option."""
    for name in options.keys() - AskOptions.__annotations__.keys():
        raise TypeError(f"{name!r} is not an option of a question")
    return {name: value for name, value in {"top_k": 1, **options}.items() if value is not None}


def read_answer(reply: dict[str, Any], latency_ms: float) -> Answer:
    """The answer in a reply without `error`; `ProtocolError` if it is malformed."""
    best = _span(reply)
    spans = reply.get("answers", [])
    timings_ms = reply.get("timings_ms", {})
    if not isinstance(spans, list) or not isinstance(timings_ms, dict):
        raise ProtocolError("the server sent answers or timings of a wrong type")
    return Answer(
        answer=best.answer,
        score=best.score,
        start=best.start,
        end=best.end,
        alternatives=tuple(map(_span, spans)),
        timings_ms=timings_ms,
        latency_ms=latency_ms,
        response=reply,
        passage=best.passage,
        places=best.places,
        passages=_list_of(_passage, reply.get("passages"), "passages"),
        unsure=_list_of(_span, reply.get("unsure"), "unsure answers"),
    )


def _span(value: object) -> Span:
    match value:
        case {
            "answer": str(answer),
            "score": float() | int() as score,
            "start": int() | None as start,
            "end": int() | None as end,
            **others,
        }:
            passage = others.get("passage")
            its = None if passage is None else _passage(passage)
            places = _list_of(_place, others.get("places"), "places")
            return Span(answer, float(score), start, end, passage=its, places=places)
    raise ProtocolError("the server sent an answer without answer, score, start or end")


def _list_of(parse: Callable[[object], _Parsed], value: object, name: str) -> tuple[_Parsed, ...]:
    """A list in a reply; empty if the reply has none."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ProtocolError(f"the server sent {name} that are no list")
    return tuple(map(parse, value))


def _place(value: object) -> Place:
    match value:
        case {"start": int(start), "end": int(end), **others}:
            document, its = (str(others.get(name, "")) for name in ("document", "collection"))
            return Place(start, end, document, its)
    raise ProtocolError("the server sent a place without start or end")


def _passage(value: object) -> Passage:
    match value:
        case {
            "document": str(document),
            "title": str(title),
            "heading": str(heading),
            "start": int(start),
            "end": int(end),
            "text": str(text),
            "line": int(line),
            "page": int(page),
            "place": str(place),
            "collection": str(its),
        }:
            return Passage(document, title, heading, start, end, text, line, page, place, its)
    raise ProtocolError("the server sent a passage that lacks something")
