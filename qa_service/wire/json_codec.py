"""Request bodies parsed from JSON, and replies encoded as frames of JSON. Sans-IO.

The sender of a wrong body gets an error; the stream goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from operator import attrgetter
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from qa_service.errors import InvalidFrameError, InvalidRequestError, QaError
from qa_service.wire.fields import near_miss
from qa_service.wire.frames import frame_of
from qa_service.wire.messages import (
    COMMANDS,
    FRAME_QUERY_TYPES,
    MAX_COLLECTIONS,
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    MAX_QUESTION_CHARS,
    NULL_ID,
    REQUEST_FIELDS,
    Answer,
    Answered,
    AnswerSource,
    Auth,
    Bounds,
    Cancel,
    Query,
    QueryType,
    RejectedError,
    Request,
    Timings,
)

MAX_AUTH_FRAME_BYTES = 4096
"""A frame of an unauthenticated client: room for the longest token and an id."""


class _Envelope(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(NULL_ID)
    type: msgspec.Raw = msgspec.Raw(b'"question"')
    model: msgspec.Raw = msgspec.Raw(b'""')


_request_decoder = msgspec.json.Decoder(Request)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_string_decoder = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()
_WHOLE = re.compile(rb"(-?\d{1,15})\.0+")
_Part = TypeVar("_Part", bound=msgspec.Struct)


def parse_request(body: bytes) -> Request | Query | Cancel:
    """Parses a frame's body; a request is within all bounds.

    Raises:
        RejectedError: With `invalid_frame` if it is not UTF-8 JSON, with `invalid_request` if it
            is JSON but not a request.
    """
    try:
        request = _decode(body)
    except UnicodeDecodeError:
        raise RejectedError(NULL_ID, InvalidFrameError("the body is not UTF-8")) from None
    except RecursionError:
        raise RejectedError(NULL_ID, InvalidFrameError("the JSON is nested too deep")) from None
    except msgspec.ValidationError as error:
        raise RejectedError(NULL_ID, InvalidRequestError(str(error))) from None
    except msgspec.DecodeError as error:
        raise RejectedError(NULL_ID, InvalidFrameError(str(error))) from None
    if isinstance(request, Request):
        id_json = request.id_json
        _check_id(id_json)
        try:
            check_bounds(request)
        except InvalidRequestError as error:
            raise RejectedError(id_json, error) from None
        # The decoded id is a view, which would keep the whole body in memory with the request.
        msgspec.structs.force_setattr(request, "id", msgspec.Raw(id_json))
    return request


def _decode(body: bytes) -> Request | Query | Cancel:
    """Decodes a body: a question at once; what is none, or has unknown fields, is read again."""
    str(body, "utf-8")  # msgspec does not check the strings in fields that it ignores
    try:
        return _request_decoder.decode(body)
    except msgspec.ValidationError as error:
        envelope = _envelope_decoder.decode(body)
        if _short_string(bytes(envelope.type)) != "question":
            return _parse_other(envelope)
        _check_id(id_json := bytes(envelope.id))
        try:
            return _decode_known(body, error)
        except msgspec.ValidationError as fault:
            raise RejectedError(id_json, InvalidRequestError(str(fault))) from None
        except InvalidRequestError as fault:
            raise RejectedError(id_json, fault) from None


def _decode_known(body: bytes, error: msgspec.ValidationError) -> Request:
    """Decodes a question again, without its unknown fields, and with 1.0 as 1.

    If that is no other question, its error is raised; or that a name is nearly that of a field.
    """
    fields = _fields_decoder.decode(body)
    if fault := near_miss(fields, REQUEST_FIELDS):
        raise InvalidRequestError(fault)
    known = {name: value for name, value in fields.items() if name in REQUEST_FIELDS}
    for name in known.keys() - {"id"}:  # which is echoed as it is
        if found := _WHOLE.fullmatch(bytes(known[name])):  # some languages write 1.0
            known[name] = msgspec.Raw(found[1])
    if known == fields:
        raise error
    return _request_decoder.decode(_encoder.encode(known))


def as_whole(value: object) -> object:
    """1 for 1.0; all else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(word: str) -> float:
    """A number with a point or an exponent, as an integer if it is one."""
    value = float(word)
    if math.isinf(value):
        raise msgspec.ValidationError("Number out of range")
    return int(value) if value.is_integer() else value


_whole_decoder = msgspec.json.Decoder(float_hook=_number)
"""Reads 1.0 as 1."""
_GOT_FLOAT = "got `float`"
"""In msgspec's message."""


def decode_leniently(decoder: msgspec.json.Decoder[_Part], body: bytes) -> _Part:
    """Decodes a body, with 1.0 as 1.

    Raises:
        msgspec.DecodeError: It is malformed.
        UnicodeDecodeError: It is not UTF-8.
        RecursionError: It is nested too deep.
    """
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        if _GOT_FLOAT not in str(error):
            raise
        decoded = msgspec.convert(_whole_decoder.decode(body), decoder.type)
    str(body, "utf-8")  # msgspec does not check the strings in fields that it ignores
    return decoded


_auth_decoder = msgspec.json.Decoder(Auth)


def parse_auth(body: bytes) -> Auth | None:
    """Parses a first frame's body; None if it has no token."""
    if len(body) > MAX_AUTH_FRAME_BYTES:
        return None
    try:
        auth = _auth_decoder.decode(str(body, "utf-8"))
        _check_id(bytes(auth.id))
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError, RejectedError):
        return None
    return auth


def _parse_other(envelope: _Envelope) -> Query | Cancel:
    """Makes a message of a body that is not a question, or rejects it."""
    id_json, query_type = bytes(envelope.id), _short_string(bytes(envelope.type))
    _check_id(id_json)
    if query_type == "cancel":
        return Cancel(id_json)
    if query_type in FRAME_QUERY_TYPES:
        model = _short_string(bytes(envelope.model))
        if query_type not in COMMANDS or model:
            return Query(id_json, cast(QueryType, query_type), model=model)
        raise RejectedError(id_json, InvalidRequestError("`model` must name a model"))
    fault = f"`type` must be question, {', '.join(FRAME_QUERY_TYPES)} or cancel"
    raise RejectedError(id_json, InvalidRequestError(fault))


def _short_string(value: bytes) -> str:
    """A JSON string, decoded; empty if it is long or no string."""
    try:
        return _string_decoder.decode(value) if len(value) <= MAX_NAME_BYTES else ""
    except msgspec.DecodeError:
        return ""


def _check_id(id_json: bytes) -> None:
    if len(id_json) > MAX_ID_BYTES:
        fault = f"`id` is longer than {MAX_ID_BYTES} bytes"
    elif id_json[0] in b"[{tf":
        fault = "`id` must be a string, a number or null"
    else:
        return
    raise RejectedError(NULL_ID, InvalidRequestError(fault))


def check_bounds(request: Request) -> None:
    """Checks that a request has a question, and a text or a collection, within all bounds."""
    if not request.question or request.question.isspace():
        raise InvalidRequestError("`question` is empty")
    if len(request.question) > MAX_QUESTION_CHARS:
        raise InvalidRequestError(
            f"`question` has {len(request.question)} characters; "
            f"at most {MAX_QUESTION_CHARS} are accepted"
        )
    if request.collection is not None:
        _check_collection(request)
        return
    if not request.text or request.text.isspace():
        raise InvalidRequestError("`text` is empty")
    if request.max_passages is not None:
        raise InvalidRequestError("`max_passages` is for a `collection`")
    if request.passages is not None:
        raise InvalidRequestError("`passages` is for a `collection`")
    if request.filter is not None:
        raise InvalidRequestError("`filter` is for a `collection`")


def _check_collection(request: Request) -> None:
    if len(request.collections) > MAX_COLLECTIONS:
        raise InvalidRequestError(f"`collection` names more than {MAX_COLLECTIONS} collections")
    if request.text:
        raise InvalidRequestError("`collection` takes the place of `text`: send one of them")
    for name, condition in (request.filter or {}).items():
        if isinstance(condition, Bounds):
            _check_filter(name, condition)


def _check_filter(name: str, bounds: Bounds) -> None:
    if bounds == Bounds():
        raise InvalidRequestError(f"`filter`: `{name}` needs `prefix`, `after` or `before`")
    for day in filter(None, (bounds.after, bounds.before)):
        try:
            date.fromisoformat(day)
        except ValueError:
            raise InvalidRequestError(f"`filter`: `{name}`: there is no day {day}") from None


_EchoedId = Annotated[
    msgspec.Raw, Meta(title="string, number or null", description="the request's")
]
_Times = Annotated[
    Timings, Meta(description="time in the queue and in the instance, in milliseconds")
]
_Answers = Annotated[
    Sequence[Answer] | msgspec.UnsetType,
    Meta(description="with `top_k` over 1: up to that many, best first"),
]
_Closing = Annotated[
    bool,
    Meta(
        description="frames only: whether the server is about to close the connection; send the "
        "next request on another"
    ),
]


def _fields(kind: type[msgspec.Struct], *, required: bool) -> list[tuple[str, Any, Any]]:
    """The fields of a message's part, for the struct of the whole message."""
    return [
        (its.name, its.type, msgspec.field(default=its.default, name=its.encode_name))
        for its in msgspec.structs.fields(kind)
        if its.required == required
    ]


_AnswersFields: Any = msgspec.defstruct(
    "_AnswersFields",
    [
        ("id", _EchoedId),
        *_fields(Answer, required=True),
        ("timings_ms", _Times),
        *_fields(Answer, required=False),
        ("answers", _Answers, msgspec.UNSET),
        *_fields(AnswerSource, required=False),
        ("closing", _Closing, False),
    ],
    frozen=True, omit_defaults=True,
)  # fmt: skip


class AnswersBody(_AnswersFields):  # type: ignore[misc]
    """The response to a question: the fields of its best answer, and of their source."""

    @property
    def answered(self) -> Answered:
        answers = [_part(Answer, self)] if self.answers is msgspec.UNSET else self.answers
        return Answered(answers, self.timings_ms, _part(AnswerSource, self))


_required_of = attrgetter(*[name for name, *_ in _fields(Answer, required=True)])
_optional_of = attrgetter(*[name for name, *_ in _fields(Answer, required=False)])
_source_of = attrgetter(*AnswerSource.__struct_fields__)


def _part(kind: type[_Part], body: AnswersBody) -> _Part:
    return kind(*(getattr(body, name) for name in kind.__struct_fields__))


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a question has no answer."""

    code: Annotated[str, Meta(description="one of those below")]
    message: Annotated[str, Meta(description="what happened, in words")]
    retryable: Annotated[
        bool, Meta(description="whether the same request may succeed if it is sent again")
    ]
    retry_after_ms: Annotated[
        int | None, Meta(title="integer", description="after how long, where that is known")
    ] = None


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The response to a question that has no answer."""

    id: _EchoedId
    error: ErrorDetail
    closing: _Closing = False


def answers_body(
    id_json: bytes, answered: Answered, top_k: int, *, is_closing: bool = False
) -> msgspec.Struct:
    """The response to a question, to be encoded.

    Args:
        top_k: If it is over 1, the response has all of the answers.
        is_closing: Whether it says that the connection is about to be closed.
    """
    best = answered.answers[0]
    return AnswersBody(
        msgspec.Raw(id_json),
        *_required_of(best),
        answered.timings,
        *_optional_of(best),
        answered.answers if top_k > 1 else msgspec.UNSET,
        *_source_of(answered.source),
        is_closing,
    )


def error_body(id_json: bytes, error: QaError, *, is_closing: bool = False) -> msgspec.Struct:
    detail = ErrorDetail(error.code, error.message, error.retryable, error.retry_after_ms)
    return ErrorBody(msgspec.Raw(id_json), detail, is_closing)


def encode_answers(
    id_json: bytes, answered: Answered, top_k: int, *, is_closing: bool = False
) -> bytes:
    return frame_of(_encoder.encode(answers_body(id_json, answered, top_k, is_closing=is_closing)))


def encode_error(id_json: bytes, error: QaError, *, is_closing: bool = False) -> bytes:
    return frame_of(_encoder.encode(error_body(id_json, error, is_closing=is_closing)))
