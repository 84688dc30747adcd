"""HTTP/1.1 as a codec: requests in, replies out in their order. Sans-IO.

    head ──▶ Auth ──accepted──▶ body ──▶ Request, Request, … or Query ──▶ reply, in its turn

Every request is an exchange from its head to its reply. One that must not be served, by its path
or by its token, is known from its head, before there is a body to keep. The ids of the messages
are ours: an exchange's number, and of its questions each its own; the client's are in the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from qa_service.errors import HttpError, InternalError, QaError
from qa_service.wire.codec import Message, Wait
from qa_service.wire.http1 import HttpReader
from qa_service.wire.http_access import HttpAccess, bearer_token
from qa_service.wire.http_message import HttpHead
from qa_service.wire.http_reply import (
    CONTINUE,
    HttpReply,
    compressed,
    decompress,
    encode_reply,
)
from qa_service.wire.http_routes import (
    OPEN_PATHS,
    Action,
    QaCall,
    QuestionsCall,
    ReportCall,
    find_action,
    path_error,
)
from qa_service.wire.messages import (
    NULL_ID,
    UNKNOWN_SOURCE,
    Answer,
    AnswerSource,
    Auth,
    Query,
    RejectedError,
    Request,
    RequestLimits,
    Timings,
)
from qa_service.wire.open_inference import InferCall, Result
from qa_service.wire.trace_context import NO_TRACE, TraceContext, trace_context

MAX_EXCHANGES = 64
MAX_NAMED_CHARS = 200
MAX_HELD_BYTES = 65536
"""Replies that wait for an earlier one's; beyond it no request is taken. A client that pipelines
and does not read costs no more memory than this."""


class _Exchange(msgspec.Struct, eq=False):
    """One request, from its head to its reply.

    Attributes:
        key: Its number, as an id.
        path: The path that it names; empty if it could not be read.
        head: The request's head; None for what was no request.
        id_json: The client's id, where the body has one.
        call: What its questions are of, once its body has come.
        results: What has come of each question.
        num_missing: Questions of which nothing has come yet.
        render: Makes the reply of the report that was asked for.
        reply: The reply's bytes, once they are known.
    """

    key: bytes
    path: str
    head: HttpHead | None
    id_json: bytes = NULL_ID
    call: QuestionsCall | None = None
    results: list[Result | None] = []
    num_missing: int = 0
    render: Callable[[Any], HttpReply] | None = None
    reply: bytes | None = None

    @property
    def name(self) -> str:
        """Its method and its path, for the log."""
        method = self.head.method if self.head else ""
        return repr(f"{method} {self.path[:MAX_NAMED_CHARS]}")

    def to_error(self, error: QaError) -> HttpReply:
        """The reply that tells an error, in the form that the path has for one."""
        return path_error(self.path, self.id_json, error)


@dataclass(frozen=True, slots=True)
class HttpSite:
    """What a server's HTTP connections have in common.

    Attributes:
        limits: Bounds on one request; a body is as long as a frame may be, compressed or not.
    """

    limits: RequestLimits
    access: HttpAccess


class HttpCodec:
    """One connection's HTTP.

    Args:
        wants_token: Whether each request must show a token, if its path is not open to all.

    Attributes:
        last_message_bytes: How long the last request's body was.
        waits_for: What `next_message` waits for where it gives nothing.
    """

    def __init__(self, site: HttpSite, *, wants_token: bool = True) -> None:
        self._site = site
        self._wants_token = wants_token
        self._reader = HttpReader(site.limits.max_frame_bytes)
        # Lists: both are short, and an empty deque takes 0.6 KiB of an idle connection.
        self._exchanges: list[_Exchange] = []
        self._num_exchanges = 0
        self._current: _Exchange | None = None
        self._owes_continue = False
        self._held_bytes = 0
        self._is_leaving = False
        self._ready: list[Message] = []
        self._asked: dict[bytes, tuple[_Exchange, int, Request]] = {}
        self._unwanted: list[Request] = []
        self.last_message_bytes = 0
        self.waits_for = Wait.BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests that are not whole yet, and messages not taken out."""
        return self._reader.buffered_bytes + len(self._ready) + (self._current is not None)

    @property
    def has_ended(self) -> bool:
        """Whether the last reply has been written."""
        return self._reader.is_closed and not self._exchanges

    @property
    def next_is_cancel(self) -> bool:
        """Never: HTTP has no message that withdraws another."""
        return False

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the stream."""
        self._reader.feed(data)

    def next_message(self) -> Message | None:
        """Takes out the next message; None if there is none for now.

        Raises:
            RejectedError: A request is not served.
            HttpError: The stream cannot be followed any further.
        """
        while not self._ready:
            if self._current is None and self._is_crowded:
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

    @property
    def _is_crowded(self) -> bool:
        return len(self._exchanges) >= MAX_EXCHANGES or self._held_bytes > MAX_HELD_BYTES

    def _begin(self, head: HttpHead) -> None:
        """Takes a head: what must not be served ends here, before its body."""
        self._current = exchange = self._open_exchange(head.path, head)
        self.last_message_bytes = 0
        self._site.access.check(head)
        if expectation := head.fields.get("expect"):
            if expectation.lower() != "100-continue":
                raise HttpError("the only expectation is 100-continue", status=417)
            self._owes_continue = not head.is_http_1_0 and head.body_bytes != 0
        if (self._wants_token or self._owes_continue) and not _is_open(head):
            self._ready.append(Auth("auth", bearer_token(head), msgspec.Raw(exchange.key)))

    def _open_exchange(self, path: str, head: HttpHead | None) -> _Exchange:
        self._num_exchanges += 1
        exchange = _Exchange(b"%d" % self._num_exchanges, path, head)
        self._exchanges.append(exchange)
        return exchange

    def _finish(self, body: bytes) -> None:
        """Takes a body: the request is whole."""
        exchange, self._current, self._owes_continue = self._current, None, False
        assert exchange
        assert exchange.head
        self.last_message_bytes = len(body)
        try:
            self._do(exchange, self._find_action(exchange.head, body))
        except RejectedError as rejected:
            exchange.id_json = rejected.id_json
            raise RejectedError(exchange.key, rejected.error) from None
        except QaError as error:
            raise RejectedError(exchange.key, error) from None
        except Exception as fault:
            fault.add_note(exchange.name)
            raise RejectedError(exchange.key, InternalError()) from fault

    def _find_action(self, head: HttpHead, body: bytes) -> Action:
        limits = self._site.limits
        if coding := head.fields.get("content-encoding"):
            body = decompress(body, coding, limits.max_frame_bytes)
        return find_action(head, body, limits)

    def _do(self, exchange: _Exchange, action: Action) -> None:
        if isinstance(action, HttpReply):
            self._report(exchange, ReportCall("document", lambda _: action))
        elif isinstance(action, ReportCall):
            self._report(exchange, action)
        else:
            self._ask(exchange, action)

    def _report(self, exchange: _Exchange, call: ReportCall) -> None:
        assert exchange.head
        exchange.render = call.render
        self._ready.append(Query(exchange.key, call.type, _is_open(exchange.head), call.model))

    def _ask(self, exchange: _Exchange, call: QuestionsCall) -> None:
        exchange.call = call
        if isinstance(call, QaCall):
            exchange.id_json = call.id_json
        exchange.num_missing = len(call.requests)
        exchange.results = [None] * exchange.num_missing
        for i, request in enumerate(call.requests):
            key = b"%s.%d" % (exchange.key, i)
            msgspec.structs.force_setattr(request, "id", msgspec.Raw(key))
            self._asked[key] = (exchange, i, request)
            self._ready.append(request)

    # Replies.

    def encode_answers(
        self,
        request: Request,
        answers: Sequence[Answer],
        timings: Timings,
        source: AnswerSource = UNKNOWN_SOURCE,
    ) -> bytes:
        """Encodes the reply if this was the last answer that it wanted."""
        exchange, i, _ = self._asked[request.id_json]
        exchange.results[i] = Result(answers, timings, source)
        exchange.num_missing -= 1
        data = b""
        if not exchange.num_missing:
            assert exchange.call
            results = [result for result in exchange.results if result]
            data = self._settle(exchange, exchange.call.reply(results))
        del self._asked[request.id_json]  # only now: until here it can still be told an error
        return data

    def encode_error(self, request: Request, error: QaError) -> bytes:
        """Encodes the error as the reply to all questions that came with this one."""
        exchange, _, _ = self._asked.pop(request.id_json)
        others = [key for key, (other, _, _) in self._asked.items() if other is exchange]
        unwanted = [self._asked.pop(key)[2] for key in others]
        waiting = {message.id_json for message in self._ready if isinstance(message, Request)}
        self._unwanted += [other for other in unwanted if other.id_json not in waiting]
        self._ready = [
            message
            for message in self._ready
            if not (isinstance(message, Request) and message.id_json in others)
        ]
        return self._settle(exchange, exchange.to_error(error))

    def trace_of(self, request: Request) -> TraceContext:
        """The trace that the HTTP request of a question belongs to."""
        head = self._asked[request.id_json][0].head
        traceparent = (head and head.fields.get("traceparent")) or request.traceparent
        return trace_context(traceparent) if traceparent else NO_TRACE

    def span_attributes(self, request: Request) -> dict[str, str]:
        """The method and the path of a question's HTTP request."""
        head = self._asked[request.id_json][0].head
        asked = {"http.request.method": head.method, "url.path": head.path} if head else {}
        return {"network.protocol.name": "http", **asked}

    def take_unwanted(self) -> Sequence[Request]:
        """Takes sibling questions to cancel after one failed."""
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    def encode_rejection(self, rejected: RejectedError) -> bytes:
        """Encodes why a request is not served; if its id is null, as the last reply."""
        if rejected.id_json != NULL_ID:
            exchange = self._exchanges[-1]
            return self._settle(exchange, exchange.to_error(rejected.error))
        is_idle = not self._current and not self._reader.buffered_bytes
        self._reader.close()
        if is_idle and not isinstance(rejected.error, HttpError):
            return b""  # nothing has been asked that this could be a reply to
        exchange = self._current or self._open_exchange(self._reader.path, None)
        self._current = None
        return self._settle(exchange, exchange.to_error(rejected.error))

    def encode_report(self, query: Query, report: object) -> bytes:
        """Encodes the reply that is made of a report."""
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
        """The next reply that leaves nothing unanswered is the last, and says so."""
        self._is_leaving = True

    def encode_authenticated(self, auth: Auth) -> bytes:
        """Tells a client to go on, if it waits for that."""
        return self._flush()

    def _settle(self, exchange: _Exchange, reply: HttpReply) -> bytes:
        """Keeps an exchange's reply; returns what may be written now."""
        head = exchange.head
        if self._is_leaving and exchange is self._exchanges[-1] and not self.buffered_bytes:
            self._reader.close()
        if isinstance(exchange.call, InferCall) and head:
            reply = compressed(reply, head.fields.get("accept-encoding", ""))
        exchange.reply = encode_reply(
            reply,
            self._site.access.fields(head) if head else {},
            is_last=self._reader.is_closed and exchange is self._exchanges[-1],
            is_http_1_0=bool(head and head.is_http_1_0),
            is_head=bool(head and head.method == "HEAD"),
        )
        self._held_bytes += len(exchange.reply)
        return self._flush()

    def _flush(self) -> bytes:
        """The replies whose turn has come, and then what the next request's client waits for."""
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
