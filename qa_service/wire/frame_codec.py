"""The frame protocol as a codec: a length, then JSON; see `docs/PROTOCOL.md`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qa_service.errors import DuplicateIdError, InternalError, QaError
from qa_service.wire.codec import Message, Wait
from qa_service.wire.frames import FrameReader, frame_of
from qa_service.wire.json_codec import encode_answers, encode_error, parse_auth, parse_request
from qa_service.wire.messages import NULL_ID, Answered, Auth, Cancel, Query, RejectedError, Request
from qa_service.wire.traces import NO_TRACE, TraceContext, trace_context

MAX_CANCEL_FRAME_BYTES = 512
"""Room for the longest id. A longer frame waits for its turn like a question."""

_encoder = msgspec.json.Encoder()


class FrameCodec:
    """One connection's frames, and the ids of its requests in flight.

    Args:
        max_first_frame_bytes: The longest first body, the only one that may be an auth frame.
    """

    waits_for = Wait.BYTES
    has_ended = False

    def __init__(self, max_frame_bytes: int, max_first_frame_bytes: int) -> None:
        self.last_message_bytes = 0
        self._max_frame_bytes = max_frame_bytes
        self._frames = FrameReader(max_first_frame_bytes)
        self._is_first = True
        self._ids: set[bytes] = set()
        self._is_closing = False

    @property
    def buffered_bytes(self) -> int:
        return len(self._frames.buffer)

    @property
    def next_is_cancel(self) -> bool:
        body = self._frames.peek(MAX_CANCEL_FRAME_BYTES)
        try:
            return isinstance(parse_request(body), Cancel)
        except Exception:  # `next_message` will tell the sender
            return False

    def feed(self, data: bytes) -> None:
        self._frames.feed(data)

    def next_message(self) -> Message | None:
        if (body := self._frames.next_frame()) is None:
            return None
        self.last_message_bytes = len(body)
        if self._is_first:
            self._is_first = False
            self._frames.max_frame_bytes = self._max_frame_bytes
            if auth := parse_auth(body):
                return auth
        try:
            message = parse_request(body)
        except RejectedError:
            raise
        except Exception as fault:
            raise RejectedError(NULL_ID, InternalError()) from fault
        if isinstance(message, Request) and (id_json := message.id_json) != NULL_ID:
            if id_json in self._ids:
                words = "a request with this id is still in flight on this connection"
                raise RejectedError(id_json, DuplicateIdError(words))
            self._ids.add(id_json)
        return message

    def encode_answers(self, request: Request, answered: Answered) -> bytes:
        id_json = request.id_json
        self._ids.discard(id_json)
        return encode_answers(id_json, answered, request.top_k, is_closing=self._is_closing)

    def encode_error(self, request: Request, error: QaError) -> bytes:
        self._ids.discard(request.id_json)
        return encode_error(request.id_json, error, is_closing=self._is_closing)

    def trace_of(self, request: Request) -> TraceContext:
        return trace_context(request.traceparent) if request.traceparent else NO_TRACE

    def span_attributes(self, request: Request) -> dict[str, str]:
        return {"network.protocol.name": "qa-frames"}

    def take_cancelled(self) -> Sequence[Request]:
        return ()  # every request has an answer

    def encode_rejection(self, rejected: RejectedError) -> bytes:
        return encode_error(rejected.id_json, rejected.error, is_closing=self._is_closing)

    def encode_report(self, query: Query, report: object) -> bytes:
        return frame_of(_encoder.encode({"id": msgspec.Raw(query.id_json), query.type: report}))

    def announce_close(self) -> None:
        self._is_closing = True

    def encode_authenticated(self, auth: Auth) -> bytes:
        return frame_of(_encoder.encode({"id": auth.id, "auth": "ok"}))
