"""HTTP/1.1 as a codec: requests in, replies out in their order. Sans-IO.

    head ──▶ Auth ──accepted──▶ body ──▶ Request, Request, … or Query ──▶ reply, in its turn

Every request is an exchange from its head to its reply. The head alone determines which requests
are refused, by path or token, before there is a body to keep. The messages' ids are the server's:
an exchange's number, and one for each of its questions; a reply has the client's own id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from qa_service.errors import HttpError, InternalError, QaError
from qa_service.wire.codec import Message, Wait
from qa_service.wire.http.http1 import HttpReader
from qa_service.wire.http.http_access import HttpAccess, bearer_token
from qa_service.wire.http.http_message import HttpHead
from qa_service.wire.http.http_reply import (
    CONTINUE,
    HttpReply,
    compressed,
    decompress,
    encode_reply,
)
from qa_service.wire.http.http_routes import (
    OPEN_PATHS,
    QaCall,
    QuestionsCall,
    ReportCall,
    path_error,
    route,
)
from qa_service.wire.http.open_inference import InferCall
from qa_service.wire.messages import NULL_ID, Answered, Auth, Query, RejectedError, Request
from qa_service.wire.traces import NO_TRACE, TraceContext, trace_context

MAX_EXCHANGES = 64
"""As many as a connection of frames may have in flight by default."""
MAX_NAMED_CHARS = 200
"""Characters of a path in the log, which a client could fill with paths of 8 KiB."""
MAX_HELD_BYTES = 65536
"""Replies that wait for an earlier one; beyond this no request is taken, so that a client which
pipelines and does not read costs no more memory."""


class _Exchange(msgspec.Struct, eq=False):
    """One request, from its head to its reply.

    Attributes:
        key: Its number, as an id.
        head: Without a method if the request is malformed.
        id_json: The client's id, if the body has one.
        results: By the ids of its requests.
        render: Makes the reply from the report that was asked for.
    """

    key: bytes
    head: HttpHead
    id_json: bytes = NULL_ID
    call: QuestionsCall | None = None
    results: dict[bytes, Answered] = {}
    render: Callable[[Any], HttpReply] | None = None
    reply: bytes | None = None

    @property
    def name(self) -> str:
        """Its method and its path, for the log."""
        return repr(f"{self.head.method} {self.head.path[:MAX_NAMED_CHARS]}")

    def to_error(self, error: QaError) -> HttpReply:
        return path_error(self.head.path, self.id_json, error)


class HttpSite(msgspec.Struct, frozen=True):
    """What all HTTP connections of a server share.

    Attributes:
        max_body_bytes: The bound on a body, compressed and inflated.
        date: Returns the time as a reply's `Date` has it (RFC 9110, section 5.6.7).
    """

    max_body_bytes: int
    access: HttpAccess
    date: Callable[[], str]


class HttpCodec:
    """One connection's HTTP; `wants_token` if each request must show one, but on open paths."""

    next_is_cancel = False  # HTTP has no message that withdraws another

    def __init__(self, site: HttpSite, *, wants_token: bool = True) -> None:
        self._site = site
        self._wants_token = wants_token
        self._reader = HttpReader(site.max_body_bytes)
        # Lists: both are short, and an empty deque takes 0.6 KiB of an idle connection.
        self._exchanges: list[_Exchange] = []
        self._num_exchanges = 0
        self._current: _Exchange | None = None
        self._owes_continue = False
        self._held_bytes = 0
        self._is_leaving = False
        self._ready: list[Message] = []
        self._asked: dict[bytes, _Exchange] = {}
        self._unwanted: list[Request] = []
        self.last_message_bytes = 0
        self.waits_for = Wait.BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests that are not whole yet, and the number of messages not taken out."""
        return self._reader.buffered_bytes + len(self._ready) + (self._current is not None)

    @property
    def has_ended(self) -> bool:
        return self._reader.is_closed and not self._exchanges

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)

    def next_message(self) -> Message | None:
        while not self._ready:
            is_crowded = len(self._exchanges) >= MAX_EXCHANGES or self._held_bytes > MAX_HELD_BYTES
            if self._current is None and is_crowded:
                self.waits_for = Wait.ANSWERS
                return None
            event = self._reader.next_event()
            if event is None:
                self.waits_for = Wait.TURN if self._reader.has_more else Wait.BYTES
                return None
            if isinstance(event, HttpHead):
                self._begin(event)
            else:
                self._finish(event)
        return self._ready.pop(0)

    def _begin(self, head: HttpHead) -> None:
        """Takes a head; refuses it if the request must not be served."""
        self._current = exchange = self._open_exchange(head)
        self.last_message_bytes = 0
        self._site.access.check(head)
        if expectation := head.fields.get("expect"):
            if expectation.lower() != "100-continue":
                raise HttpError("the only expectation is 100-continue", status=417)
            self._owes_continue = not head.is_http_1_0 and head.body_bytes != 0
        if (self._wants_token or self._owes_continue) and not _is_open(head):
            self._ready.append(Auth("auth", bearer_token(head.fields), msgspec.Raw(exchange.key)))

    def _open_exchange(self, head: HttpHead) -> _Exchange:
        self._num_exchanges += 1
        exchange = _Exchange(b"%d" % self._num_exchanges, head)
        self._exchanges.append(exchange)
        return exchange

    def _finish(self, body: bytes) -> None:
        exchange, self._current, self._owes_continue = self._current, None, False
        assert exchange
        self.last_message_bytes = len(body)
        try:
            self._do(exchange, body)
        except RejectedError as rejected:
            exchange.id_json = rejected.id_json
            raise RejectedError(exchange.key, rejected.error) from None
        except QaError as error:
            raise RejectedError(exchange.key, error) from None
        except Exception as fault:
            fault.add_note(exchange.name)
            raise RejectedError(exchange.key, InternalError()) from fault

    def _do(self, exchange: _Exchange, body: bytes) -> None:
        head = exchange.head
        if coding := head.fields.get("content-encoding"):
            body = decompress(body, coding, self._site.max_body_bytes)
        call = route(head, body)
        if isinstance(call, ReportCall):
            exchange.render = call.render
            self._ready.append(Query(exchange.key, call.type, _is_open(head), call.model))
            return
        exchange.call = call
        if isinstance(call, QaCall):
            exchange.id_json = call.id_json
        for i, request in enumerate(call.requests):
            key = b"%s.%d" % (exchange.key, i)
            msgspec.structs.force_setattr(request, "id", msgspec.Raw(key))
            self._asked[key] = exchange
            self._ready.append(request)

    # Replies.

    def encode_answers(self, request: Request, answered: Answered) -> bytes:
        """Encodes the reply if these were the last answers that it waited for."""
        exchange = self._asked[request.id_json]
        assert exchange.call
        exchange.results[request.id_json] = answered
        requests, data = exchange.call.requests, b""
        if len(exchange.results) == len(requests):
            results = [exchange.results[one.id_json] for one in requests]
            data = self._settle(exchange, exchange.call.reply(results))
        del self._asked[request.id_json]  # only now: if the reply fails, `encode_error` needs it
        return data

    def encode_error(self, request: Request, error: QaError) -> bytes:
        """Encodes the error as the reply to all questions of the exchange."""
        exchange = self._asked.pop(request.id_json)
        assert exchange.call
        requests = {one.id_json: one for one in exchange.call.requests}
        siblings = {key: one for key, one in requests.items() if self._asked.pop(key, None)}
        for message in list(self._ready):
            if isinstance(message, Request) and message.id_json in siblings:
                del siblings[message.id_json]
                self._ready.remove(message)
        self._unwanted += siblings.values()
        return self._settle(exchange, exchange.to_error(error))

    def trace_of(self, request: Request) -> TraceContext:
        head = self._asked[request.id_json].head
        traceparent = head.fields.get("traceparent") or request.traceparent
        return trace_context(traceparent) if traceparent else NO_TRACE

    def span_attributes(self, request: Request) -> dict[str, str]:
        head = self._asked[request.id_json].head
        return {"network.protocol.name": "http", "http.request.method": head.method,
                "url.path": head.path}  # fmt: skip

    def take_cancelled(self) -> Sequence[Request]:
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    def encode_rejection(self, rejected: RejectedError) -> bytes:
        """Encodes why a request is refused; as the last reply if the id is null."""
        if rejected.id_json != NULL_ID:
            exchange = self._exchanges[-1]
            return self._settle(exchange, exchange.to_error(rejected.error))
        is_idle = not self._current and not self._reader.buffered_bytes
        self._reader.close()
        if is_idle and not isinstance(rejected.error, HttpError):
            return b""  # there is no request to reply to
        fields = {"origin": self._reader.origin}
        unread = HttpHead("", self._reader.path, "", fields, False, True, 0)
        exchange = self._current or self._open_exchange(unread)
        self._current = None
        return self._settle(exchange, exchange.to_error(rejected.error))

    def encode_report(self, query: Query, report: object) -> bytes:
        exchange = self._exchanges[-1]
        assert exchange.key == query.id_json
        assert exchange.render
        try:
            reply = exchange.render(report)
        except Exception as fault:
            fault.add_note(exchange.name)
            raise
        return self._settle(exchange, reply)

    def announce_close(self) -> None:
        """Makes the next reply that leaves no request unanswered the last, which says so."""
        self._is_leaving = True

    def encode_authenticated(self, auth: Auth) -> bytes:
        """Encodes `100 Continue` if the client waits for it."""
        return self._flush()

    def _settle(self, exchange: _Exchange, reply: HttpReply) -> bytes:
        """Keeps an exchange's reply; returns the bytes that may be written now."""
        head = exchange.head
        if self._is_leaving and exchange is self._exchanges[-1] and not self.buffered_bytes:
            self._reader.close()
        if isinstance(exchange.call, InferCall):
            reply = compressed(reply, head.fields.get("accept-encoding", ""))
        exchange.reply = encode_reply(
            reply,
            self._site.access.fields(head),
            date=self._site.date(),
            is_last=self._reader.is_closed and exchange is self._exchanges[-1],
            is_http_1_0=head.is_http_1_0,
            is_head=head.method == "HEAD",
        )
        self._held_bytes += len(exchange.reply)
        return self._flush()

    def _flush(self) -> bytes:
        """The replies whose turn has come, and `100 Continue` if the next request waits for it."""
        replies = []
        while self._exchanges and self._exchanges[0].reply is not None:
            reply = self._exchanges.pop(0).reply
            assert reply is not None
            replies.append(reply)
            self._held_bytes -= len(reply)
        if self._owes_continue and self._exchanges[0] is self._current:
            self._owes_continue = False
            if not self._reader.buffered_bytes:
                replies.append(CONTINUE)
        return b"".join(replies)


def _is_open(head: HttpHead) -> bool:
    return head.path in OPEN_PATHS or head.method == "OPTIONS"
