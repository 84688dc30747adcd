"""A job becomes a request to the server, and the server's reply the job's answer.

A job's body is the wire's request (`docs/PROTOCOL.md`). It is parsed whole here, so that nothing
in it can break the connection that it shares with other jobs: the server gets JSON that this
module wrote, with an id of the connection's own. The answer gets the job's id back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from qa_service.client import QaClientError, QaServerError
from qa_service.wire.messages import REQUEST_FIELDS
from qa_service.wire.near_misses import near_miss

Reply = dict[str, msgspec.Raw]
"""A reply of the server, its fields as they were sent."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a broker delivered.

    Attributes:
        body: A request, unless the producer made a mistake.
        message_id: Consumers deduplicate by it; None is an error.
        correlation_id: Copied into the answer; None stands for `message_id`.
        reply_to: The queue for the answer; None for the results queue.
        deadline_s: When the job expires, by `time.monotonic`; None for never.
        attempts: Failed attempts before this delivery.
        reason: Why the job is in a retry queue or the dead queue; None if unknown.
        arrived_s: By `time.monotonic`.
    """

    body: bytes
    message_id: str | None
    correlation_id: str | None
    reply_to: str | None
    deadline_s: float | None
    attempts: int
    reason: str | None
    arrived_s: float
    receipt: Any


class Request(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of the wire's request that a job may have; others are ignored.

    `priority` is one of those: every job asks with the lowest, the server's default. The server
    checks values of type `Any`; here they are only decoded, so that they are sent as valid JSON.
    """

    id: Any = None
    type: Any = "question"
    question: str
    text: str = ""
    top_k: Any = 1
    timeout_ms: float | None = None
    model: Any = None
    version: Any = None
    collection: Any = None
    max_passages: Any = None
    skim: Any = None


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """The `error` of an error answer."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: float | None = None


class _Peeked(msgspec.Struct):
    id: Any = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_request_decoder = msgspec.json.Decoder(Request)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_reply_decoder = msgspec.json.Decoder(Reply)
_peek_decoder = msgspec.json.Decoder(_Peeked)
_error_decoder = msgspec.json.Decoder(ErrorDetail)
_encoder = msgspec.json.Encoder()


def as_server_error(error: QaClientError) -> QaServerError:
    """A client's error in the server's form."""
    if isinstance(error, QaServerError):
        return error
    return QaServerError(error.code, str(error), error.retryable)


def parse_request(body: bytes) -> Request:
    """Parses a job's body.

    Raises:
        QaServerError: It is not a request.
    """
    try:
        str(body, "utf-8")  # msgspec does not look at the strings in fields that it ignores
        request = _request_decoder.decode(body)
        fault = near_miss(_fields_decoder.decode(body), REQUEST_FIELDS)
    except (UnicodeDecodeError, RecursionError):
        words = "the body is not UTF-8 JSON that can be read"
        raise QaServerError("invalid_frame", words) from None
    except msgspec.ValidationError as error:
        raise QaServerError("invalid_request", str(error)) from None
    except msgspec.DecodeError as error:
        raise QaServerError("invalid_frame", str(error)) from None
    if fault:
        raise QaServerError("invalid_request", fault)
    if request.type != "question":
        raise QaServerError("invalid_request", "`type` must be question")
    return request


def peek_id(body: bytes) -> object:
    """The id in a body that may not be a request; None if none can be read."""
    job_id = _peek(body).id
    return job_id if isinstance(job_id, str | int | float) else None


def encode_request(request: Request, wire_id: int, timeout_ms: float | None) -> bytes:
    """The body of the request's frame."""
    asked = msgspec.structs.replace(request, id=wire_id, type="question", timeout_ms=timeout_ms)
    return _encoder.encode(asked)


def read_reply(body: bytes) -> Reply | QaServerError:
    """The reply in a frame's body, or the error that it carries.

    Raises:
        msgspec.DecodeError: The reply is malformed.
    """
    reply = _reply_decoder.decode(body)
    if "error" not in reply:
        return reply
    detail = _error_decoder.decode(reply["error"])
    return QaServerError(detail.code, detail.message, detail.retryable, detail.retry_after_ms)


def encode_answer(job_id: object, reply: Reply) -> bytes:
    """The reply with the job's own id; the server's other fields stay byte for byte."""
    return _encoder.encode({"id": job_id, **{k: v for k, v in reply.items() if k != "id"}})


def encode_error(job_id: object, error: QaServerError) -> bytes:
    """The error answer to a job."""
    detail = ErrorDetail(error.code, error.message, error.retryable, error.retry_after_ms)
    return _encoder.encode({"id": job_id, "error": detail})


def is_error(answer: bytes) -> bool:
    """Whether an answer's body is an error answer."""
    # The first condition spares nearly all the parsing.
    return b'"error"' in answer and _peek(answer).error is not msgspec.UNSET


def _peek(body: bytes) -> _Peeked:
    try:
        return _peek_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _Peeked()
