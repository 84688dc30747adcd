"""One gRPC call: who makes it, what it shows, and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import grpc
import msgspec

from qa_service.errors import DeadlineExceededError, HttpError, QaError
from qa_service.wire.error_codes import grpc_code_of
from qa_service.wire.http.http_access import bearer_token
from qa_service.wire.messages import Request

MAX_MESSAGE_CHARS = 300
"""Percent-encoded, each takes at most 12 bytes: all fit the 8 KiB of metadata that clients take."""

MIN_TIMEOUT_MS = 0.001
"""A call with less time left is not asked: the server takes no timeout of 0."""


class Caller:
    """The caller of a gRPC call, as its context has it; a token or a trace may be empty."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        self.peer: str = context.peer()
        self.token = bearer_token(metadata)
        self.traceparent = metadata.get("traceparent", "")
        self.wants_status = metadata.get("triton_grpc_error", "").lower() == "true"
        self._context = context

    def limit(self, requests: Sequence[Request]) -> list[Request]:
        """The questions with the call's deadline and trace; raises `DeadlineExceededError`."""
        left_s = self._context.time_remaining()
        left_ms = None if left_s is None else left_s * 1e3
        if left_ms is not None and left_ms < MIN_TIMEOUT_MS:
            raise DeadlineExceededError
        return [
            msgspec.structs.replace(
                request,
                timeout_ms=min(filter(None, (left_ms, request.timeout_ms)), default=None),
                traceparent=self.traceparent,
            )
            for request in requests
        ]


def message_of(error: QaError) -> str:
    """The error's message, cut to fit a header."""
    return error.message[:MAX_MESSAGE_CHARS]


class PeerLostError(Exception):
    """A peer's connection was lost while a message of a stream was being written."""


async def write(context: grpc.aio.ServicerContext, message: object) -> None:
    """Writes a message of a stream; `PeerLostError` if nobody reads it any more."""
    try:
        await context.write(message)
    except grpc.aio.BaseError:
        raise PeerLostError from None


async def abort(context: grpc.aio.ServicerContext, error: QaError) -> NoReturn:
    """Ends a call with an error: a status code, a short message, and trailers.

    These are the error's code, and after how long to ask again; gRPC's own retries go by
    `grpc-retry-pushback-ms` (its proposal A6).

    Raises:
        grpc.aio.AbortError: Always.
    """
    trailers = [] if isinstance(error, HttpError) else [("qa-error", error.code)]
    if (after_ms := error.retry_after_ms) is not None:
        trailers.append(("retry-after", str(math.ceil(after_ms / 1e3))))
        trailers.append(("grpc-retry-pushback-ms", str(after_ms)))
    code = grpc.StatusCode[grpc_code_of(error)]
    await context.abort(code, message_of(error), tuple(trailers))
    raise AssertionError("a call goes on that was aborted")
