"""The server's errors as gRPC tells them: a status code, a short message, and trailers."""

from __future__ import annotations

import math
from typing import NoReturn

import grpc

from qa_service.errors import (
    CancelledError,
    DeadlineExceededError,
    ExecutionTimeoutError,
    ForbiddenError,
    FrameTimeoutError,
    FrameTooLargeError,
    HttpError,
    InvalidFrameError,
    InvalidRequestError,
    QaError,
    QuestionTooLongError,
    QueueFullError,
    ShuttingDownError,
    TextTooLongError,
    UnauthorizedError,
    UnavailableError,
    UnknownCollectionError,
    UnknownModelError,
)

MAX_MESSAGE_CHARS = 300
_Code = grpc.StatusCode

CODE_OF: dict[type[QaError], grpc.StatusCode] = {
    InvalidFrameError: _Code.INVALID_ARGUMENT,
    InvalidRequestError: _Code.INVALID_ARGUMENT,
    QuestionTooLongError: _Code.INVALID_ARGUMENT,
    TextTooLongError: _Code.INVALID_ARGUMENT,
    UnauthorizedError: _Code.UNAUTHENTICATED,
    ForbiddenError: _Code.PERMISSION_DENIED,
    UnknownModelError: _Code.NOT_FOUND,
    UnknownCollectionError: _Code.NOT_FOUND,
    FrameTooLargeError: _Code.RESOURCE_EXHAUSTED,
    QueueFullError: _Code.RESOURCE_EXHAUSTED,
    CancelledError: _Code.CANCELLED,
    FrameTimeoutError: _Code.DEADLINE_EXCEEDED,
    DeadlineExceededError: _Code.DEADLINE_EXCEEDED,
    ExecutionTimeoutError: _Code.DEADLINE_EXCEEDED,
    ShuttingDownError: _Code.UNAVAILABLE,
    UnavailableError: _Code.UNAVAILABLE,
}
"""Every kind of error that is told by its code; those not named are INTERNAL."""

_CODE_OF_HTTP = {
    400: _Code.INVALID_ARGUMENT,
    401: _Code.UNAUTHENTICATED,
    403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND,
    501: _Code.UNIMPLEMENTED,
    503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}


def code_of(error: QaError) -> grpc.StatusCode:
    """The status code that tells an error."""
    if isinstance(error, HttpError):
        return _CODE_OF_HTTP.get(error.status, _Code.INTERNAL)
    return CODE_OF.get(type(error), _Code.INTERNAL)


def message_of(error: QaError) -> str:
    """Its message, as much of it as fits a header."""
    return error.message[:MAX_MESSAGE_CHARS]


def trailers_of(error: QaError) -> tuple[tuple[str, str], ...]:
    """Which error it is, and after which time to ask again.

    `grpc-retry-pushback-ms` is what gRPC's own retries go by (its proposal A6).
    """
    trailers = [] if isinstance(error, HttpError) else [("qa-error", error.code)]
    if (after_ms := error.retry_after_ms) is not None:
        trailers.append(("retry-after", str(math.ceil(after_ms / 1e3))))
        trailers.append(("grpc-retry-pushback-ms", str(after_ms)))
    return tuple(trailers)


async def abort(context: grpc.aio.ServicerContext, error: QaError) -> NoReturn:
    """Ends a call with an error.

    Raises:
        grpc.aio.AbortError: Always.
    """
    await context.abort(code_of(error), message_of(error), trailers_of(error))
    raise AssertionError("a call goes on that was aborted")
