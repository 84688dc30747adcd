"""A job becomes a request to the server, and the server's reply the job's answer.

A job's body is the wire's request (`docs/PROTOCOL.md`). It is parsed whole here, so that nothing
in it can break the connection that it shares with other jobs: the server gets JSON that this
module wrote, with an id of the connection's own. The answer gets the job's id back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from qa_service.client import QaClientError, QaServerError
from qa_service.wire.fields import JOB_FIELDS, near_miss
from qa_service.wire.json_codec import ErrorDetail
from qa_service.wire.messages import REQUEST_FIELDS

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


class _Fields(msgspec.Struct):
    """The fields that are looked at here; the server checks all others."""

    question: str
    type: Any = "question"
    timeout_ms: float | None = None


JobRequest = Mapping[str, Any]
"""A question as a job asks it: the fields of the wire's request that a job may have. `priority` is
one of these: every job asks with the lowest, the server's default."""


class _Peeked(msgspec.Struct):
    id: Any = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_fields_decoder = msgspec.json.Decoder(dict[str, Any])
_reply_decoder = msgspec.json.Decoder(Reply)
_peek_decoder = msgspec.json.Decoder(_Peeked)
_error_decoder = msgspec.json.Decoder(ErrorDetail)
_encoder = msgspec.json.Encoder()


def as_server_error(error: QaClientError) -> QaServerError:
    if isinstance(error, QaServerError):
        return error
    return QaServerError(error.code, str(error), error.retryable)


def parse_request(body: bytes) -> JobRequest:
    """Parses a job's body; `QaServerError` if it is not a request."""
    try:
        fields = _fields_decoder.decode(str(body, "utf-8"))
        checked = msgspec.convert(fields, _Fields)
    except (UnicodeDecodeError, RecursionError):
        words = "the body is not UTF-8 JSON that can be read"
        raise QaServerError("invalid_frame", words) from None
    except msgspec.ValidationError as error:
        raise QaServerError("invalid_request", str(error)) from None
    except msgspec.DecodeError as error:
        raise QaServerError("invalid_frame", str(error)) from None
    if fault := near_miss(fields, REQUEST_FIELDS):
        raise QaServerError("invalid_request", fault)
    if checked.type != "question":
        raise QaServerError("invalid_request", "`type` must be question")
    return {name: fields[name] for name in JOB_FIELDS if name in fields}


def peek_id(body: bytes) -> object:
    """The id in a body that may not be a request; None if none can be read."""
    job_id = _peek(body).id
    return job_id if isinstance(job_id, str | int | float) else None


def encode_request(request: JobRequest, wire_id: int, timeout_ms: float | None) -> bytes:
    return _encoder.encode({**request, "id": wire_id, "timeout_ms": timeout_ms})


def read_reply(body: bytes) -> Reply | QaServerError:
    """The reply in a frame's body, or its error; `DecodeError` if it is malformed."""
    reply = _reply_decoder.decode(body)
    if "error" not in reply:
        return reply
    detail = _error_decoder.decode(reply["error"])
    return QaServerError(detail.code, detail.message, detail.retryable, detail.retry_after_ms)


def encode_answer(job_id: object, reply: Reply) -> bytes:
    """The reply with the job's own id; the server's other fields stay byte for byte."""
    return _encoder.encode({"id": job_id, **{k: v for k, v in reply.items() if k != "id"}})


def encode_error(job_id: object, error: QaServerError) -> bytes:
    detail = ErrorDetail(error.code, error.message, error.retryable, error.retry_after_ms)
    return _encoder.encode({"id": job_id, "error": detail})


def is_error(answer: bytes) -> bool:
    # The first condition spares nearly all the parsing.
    return b'"error"' in answer and _peek(answer).error is not msgspec.UNSET


def _peek(body: bytes) -> _Peeked:
    try:
        return _peek_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _Peeked()
