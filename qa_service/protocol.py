"""The wire: frames, requests, responses. Sans-IO: bytes in, objects out, and back.

    0        4                    4 + length
    +--------+--------------------+
    | length | UTF-8 JSON         |     length: 4 bytes, big-endian, of the JSON alone
    +--------+--------------------+

A body that is wrong costs its sender one error answer and the stream goes on. A length over
the limit is refused on the prefix alone: what follows it cannot be found any more, so the
stream ends there. `docs/PROTOCOL.md` is the same for people, with golden frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

import msgspec

from qa_service.errors import FrameTooLargeError, InvalidFrameError, InvalidRequestError, QaError
from qa_service.long_body import MIN_MIDDLE_BYTES, RULE, cut

PREFIX = struct.Struct(">I")
NULL_ID = b"null"
MAX_ID_BYTES = 256
MAX_AUTH_FRAME_BYTES = 4096
MAX_TYPE_BYTES = 64
OTHER_FIELDS_BYTES = 2048
MAX_TOP_K = 20
MAX_PRIORITY = 9


class FrameReader:
    """Cuts a stream of bytes into frames.

    Attributes:
        max_frame_bytes: The longest body accepted.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the stream."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Takes out the next whole frame's body; None if it is not all there yet.

        Raises:
            FrameTooLargeError: The next length is over the limit.
        """
        if len(self._buffer) < PREFIX.size:
            return None
        (length,) = PREFIX.unpack_from(self._buffer)
        if length > self.max_frame_bytes:
            raise FrameTooLargeError(
                f"a frame of {length} bytes; at most {self.max_frame_bytes} are accepted"
            )
        end = PREFIX.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[PREFIX.size : end])
        del self._buffer[:end]
        return body

    @property
    def buffered_bytes(self) -> int:
        """Bytes held that no frame has taken out: part of a frame, or frames not asked for."""
        return len(self._buffer)


class Question(msgspec.Struct, frozen=True):
    """What is asked of a text, and how many answers are wanted."""

    question: str
    text: str
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)] = 1


class Request(Question, frozen=True, tag_field="type", tag="question"):
    """A question as a client sends it; its `type`, if it has one, is `question`.

    Attributes:
        id: The JSON value that its answer carries, byte for byte as it was sent.
        timeout_ms: How long it may wait for a session, in milliseconds.
        priority: 0 to 9; of two requests that wait, the higher one goes sooner.
    """

    id: msgspec.Raw = msgspec.Raw(NULL_ID)
    timeout_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0

    @property
    def id_json(self) -> bytes:
        """The id's JSON."""
        return bytes(self.id)

    def as_question(self) -> Question:
        """The part that a session needs."""
        return Question(self.question, self.text, self.top_k)


QueryType = Literal["health", "stats"]
QUERY_TYPES = get_args(QueryType)


@dataclass(frozen=True, slots=True)
class Query:
    """What a client asks about the server itself; the loop answers it at once.

    Attributes:
        id_json: The id's JSON.
        type: What is asked.
    """

    id_json: bytes
    type: QueryType


class Answer(msgspec.Struct, frozen=True):
    """A span of the text, or the finding that there is none.

    Attributes:
        answer: The span exactly as it stands in the text; empty for "no answer".
        score: Probability that this is the answer, 0 to 1.
        start: Where it starts in the text, in Unicode code points; None for "no answer".
        end: One past where it ends; None for "no answer".
    """

    answer: str
    score: float
    start: int | None
    end: int | None


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in milliseconds.

    Attributes:
        queue: From its last byte's arrival until a session began with its batch.
        inference: From then to the batch's answers: tokenizing, the model, and reading the
            logits; and for a long text, what the session did between its steps.
    """

    queue: float
    inference: float


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on what a request may ask.

    Attributes:
        max_question_chars: Longest question, in code points.
        max_text_chars: Longest text, in code points.
    """

    max_question_chars: int
    max_text_chars: int

    @property
    def margin_bytes(self) -> int:
        r"""Room for a question in escapes (`\u00e9`) and for the other fields, see `long_body`."""
        return 6 * self.max_question_chars + OTHER_FIELDS_BYTES

    @property
    def max_short_body_bytes(self) -> int:
        """The longest body that may be of anything."""
        return 2 * self.margin_bytes + MIN_MIDDLE_BYTES


class RejectedError(Exception):
    """A body that is not a request.

    Attributes:
        id_json: The id to answer it under, `null` where none could be read.
        error: What to answer.
    """

    def __init__(self, id_json: bytes, error: QaError) -> None:
        super().__init__(str(error))
        self.id_json = id_json
        self.error = error


class _Envelope(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(NULL_ID)
    type: msgspec.Raw = msgspec.Raw(b'"question"')


_request_decoder = msgspec.json.Decoder(Request)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_string_decoder = msgspec.json.Decoder(str)


def parse_request(body: bytes, limits: RequestLimits) -> Request | Query:
    """Parses a frame's body into a request that is within all limits.

    Raises:
        RejectedError: With `invalid_frame` if it is not UTF-8 JSON, or long and not mostly one
            string, with `invalid_request` if it is JSON but not a request.
    """
    is_long = len(body) > limits.max_short_body_bytes
    try:
        request = _decode_long(body, limits.margin_bytes) if is_long else _decode(body)
    except UnicodeDecodeError:
        raise RejectedError(NULL_ID, InvalidFrameError("the body is not UTF-8")) from None
    except RecursionError:
        raise RejectedError(NULL_ID, InvalidFrameError("the JSON is nested too deep")) from None
    except msgspec.ValidationError as error:
        raise RejectedError(NULL_ID, InvalidRequestError(str(error))) from None
    except msgspec.DecodeError as error:
        sizes = limits.max_short_body_bytes, limits.margin_bytes
        fault = RULE.format(*sizes) if is_long else str(error)
        raise RejectedError(NULL_ID, InvalidFrameError(fault)) from None
    if isinstance(request, Request):
        _check_id(request.id_json)
        _check_request(request, limits)
        # The decoded id is a view that would keep the whole body in memory as long as the request.
        msgspec.structs.force_setattr(request, "id", msgspec.Raw(request.id_json))
    return request


def _decode(body: bytes) -> Request | Query:
    """Decodes a body, once if it is a question; of what else comes, type and id are read again."""
    str(body, "utf-8")  # msgspec does not look at the strings in fields that it ignores
    try:
        return _request_decoder.decode(body)
    except msgspec.ValidationError as error:
        return _parse_query(_envelope_decoder.decode(body), str(error))


def _decode_long(body: bytes, margin_bytes: int) -> Request | Query:
    """Decodes a body's middle, then the rest, and puts the one where it was in the other."""
    parts = cut(body, margin_bytes)
    middle, marker = _string_decoder.decode(parts.middle), parts.marker.decode()
    request = _decode(parts.rest)
    if isinstance(request, Query):
        return request
    return msgspec.structs.replace(
        request,
        question=request.question.replace(marker, middle),
        text=request.text.replace(marker, middle),
    )


class Auth(msgspec.Struct, frozen=True):
    """What a client shows in its first frame so as to be let in.

    Attributes:
        token: A secret that the server knows.
        id: The JSON value that the reply carries, byte for byte as it was sent.
    """

    type: Literal["auth"]
    token: str
    id: msgspec.Raw = msgspec.Raw(NULL_ID)


_auth_decoder = msgspec.json.Decoder(Auth)


def parse_auth(body: bytes) -> Auth | None:
    """Parses a first frame's body; None if it is none that carries a token."""
    if len(body) > MAX_AUTH_FRAME_BYTES:
        return None
    try:
        auth = _auth_decoder.decode(str(body, "utf-8"))
        _check_id(bytes(auth.id))
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError, RejectedError):
        return None
    return auth


def _parse_query(envelope: _Envelope, fault: str) -> Query:
    """Makes a query of what is not a question, or rejects it for its fault."""
    id_json, query_type = bytes(envelope.id), _type_name(bytes(envelope.type))
    _check_id(id_json)
    if query_type in QUERY_TYPES:
        return Query(id_json, cast(QueryType, query_type))
    if query_type != "question":
        fault = f"`type` must be question, {' or '.join(QUERY_TYPES)}"
    raise RejectedError(id_json, InvalidRequestError(fault))


def _type_name(type_json: bytes) -> str:
    """The type, as it may be written in many ways; empty if it is no string or a long one."""
    try:
        return _string_decoder.decode(type_json) if len(type_json) <= MAX_TYPE_BYTES else ""
    except msgspec.DecodeError:
        return ""


def _check_id(id_json: bytes) -> None:
    if len(id_json) > MAX_ID_BYTES:
        fault = f"`id` is longer than {MAX_ID_BYTES} bytes"
    elif id_json[:1] in b"[{tf":
        fault = "`id` must be a string, a number or null"
    else:
        return
    raise RejectedError(NULL_ID, InvalidRequestError(fault))


def _check_request(request: Request, limits: RequestLimits) -> None:
    for name, value, most in (
        ("question", request.question, limits.max_question_chars),
        ("text", request.text, limits.max_text_chars),
    ):
        if not value or value.isspace():
            fault = f"`{name}` is empty"
        elif len(value) > most:
            fault = f"`{name}` has {len(value)} characters; at most {most} are accepted"
        else:
            continue
        raise RejectedError(request.id_json, InvalidRequestError(fault))


class _AnswerBody(msgspec.Struct, frozen=True, omit_defaults=True):
    id: msgspec.Raw
    answer: str
    score: float
    start: int | None
    end: int | None
    timings_ms: Timings
    answers: Sequence[Answer] | msgspec.UnsetType = msgspec.UNSET


class _ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    id: msgspec.Raw
    error: _ErrorDetail


_encoder = msgspec.json.Encoder()


def encode_answers(
    id_json: bytes, answers: Sequence[Answer], timings: Timings, top_k: int
) -> bytearray:
    """Encodes a response frame.

    Args:
        id_json: The request's id.
        answers: At least one, best first.
        timings: Where the time went.
        top_k: How many answers were wanted; over 1, the frame carries all of `answers`.
    """
    best = answers[0]
    return _frame(
        _AnswerBody(
            id=msgspec.Raw(id_json),
            answer=best.answer,
            score=best.score,
            start=best.start,
            end=best.end,
            timings_ms=timings,
            answers=answers if top_k > 1 else msgspec.UNSET,
        )
    )


def encode_auth_reply(auth: Auth) -> bytearray:
    """Encodes the frame that tells a client it is let in."""
    return _frame({"id": auth.id, "auth": "ok"})


def encode_error(id_json: bytes, error: QaError) -> bytearray:
    """Encodes an error frame."""
    detail = _ErrorDetail(error.code, error.message, error.retryable, error.retry_after_ms)
    return _frame(_ErrorBody(msgspec.Raw(id_json), detail))


def encode_report(query: Query, report: object) -> bytearray:
    """Encodes the answer to a query; the report stands under the query's type."""
    return _frame({"id": msgspec.Raw(query.id_json), query.type: report})


def _frame(body: object) -> bytearray:
    frame = bytearray(PREFIX.size)
    _encoder.encode_into(body, frame, PREFIX.size)
    PREFIX.pack_into(frame, 0, len(frame) - PREFIX.size)
    return frame
