"""The server's errors in gRPC: a status code, a short message, and trailers."""

from __future__ import annotations

import math
from typing import NoReturn

import grpc

from qa_service.errors import HttpError, QaError
from qa_service.wire.error_codes import grpc_code_of

MAX_MESSAGE_CHARS = 300
"""Percent-encoded, each takes at most 12 bytes: all fit the 8 KiB of metadata that clients take."""


def code_of(error: QaError) -> grpc.StatusCode:
    """The status code of an error."""
    return grpc.StatusCode[grpc_code_of(error)]


def message_of(error: QaError) -> str:
    """The error's message, cut to fit a header."""
    return error.message[:MAX_MESSAGE_CHARS]


def trailers_of(error: QaError) -> tuple[tuple[str, str], ...]:
    """The error's code, and after how long to ask again.

    `grpc-retry-pushback-ms` is what gRPC's own retries go by (its proposal A6).
    """
    trailers = [] if isinstance(error, HttpError) else [("qa-error", error.code)]
    if (after_ms := error.retry_after_ms) is not None:
        trailers.append(("retry-after", str(math.ceil(after_ms / 1e3))))
        trailers.append(("grpc-retry-pushback-ms", str(after_ms)))
    return tuple(trailers)


class PeerLostError(Exception):
    """A peer's connection was lost while a message of a stream was being written."""


async def write(context: grpc.aio.ServicerContext, message: object) -> None:
    """Writes a message of a stream.

    Raises:
        PeerLostError: Nobody reads the stream any more.
    """
    try:
        await context.write(message)
    except grpc.aio.BaseError:
        raise PeerLostError from None


async def abort(context: grpc.aio.ServicerContext, error: QaError) -> NoReturn:
    """Ends a call with an error.

    Raises:
        grpc.aio.AbortError: Always.
    """
    await context.abort(code_of(error), message_of(error), trailers_of(error))
    raise AssertionError("a call goes on that was aborted")
