"""The errors of the server, in two families.

A `QaError` is sent to a client: it has a stable wire code, says whether the same request may
succeed if sent again, and carries a message that is safe to send (no paths, no traceback, nothing
of another client's). A `SetupError` is for the person at the terminal: the program cannot start,
and the message says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar


class SetupError(Exception):
    """The program cannot start as asked; the message is one line that says what to do."""

    exit_code: ClassVar[int] = 2


class DamagedError(SetupError):
    """Files are there and cannot be read as what they should be; what else is there can be used."""


class DeviceError(SetupError):
    """The device does not exist, or the installed libraries cannot use it."""


class InstancesLostError(SetupError):
    """The server ran, but its instances died and none can be started again."""

    exit_code = 3


class EngineFaultError(Exception):
    """A run returned nothing new: what this process's engine returns cannot be believed."""


class WrongAnswerError(EngineFaultError):
    """The engine does not give the known answers: none of its results can be trusted."""


class QaError(Exception):
    """A request's error answer.

    Attributes:
        code: Stable lower_snake name of the kind, listed in `docs/PROTOCOL.md`; what it is in
            other protocols is in `wire/error_codes.py`.
        retryable: Whether the same request may succeed when sent again.
        message: Safe to send.
        retry_after_ms: None if unknown.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    default_message: ClassVar[str] = "the server failed to answer this request"

    def __init__(self, message: str = "", *, retry_after_ms: int | None = None) -> None:
        self.message = message or self.default_message
        self.retry_after_ms = retry_after_ms
        super().__init__(self.message)


class InternalError(QaError):
    """A fault of the server, whose details are in its log."""


class FrameTooLargeError(QaError):
    """A length prefix over the limit; the connection is closed."""

    code = "frame_too_large"


class InvalidFrameError(QaError):
    """A frame that is not UTF-8 JSON."""

    code = "invalid_frame"


class InvalidRequestError(QaError):
    """JSON that is not a request: a field is missing, of a wrong type, or out of bounds."""

    code = "invalid_request"
    default_message = "the server refuses this request"


class UnauthorizedError(QaError):
    """A token that is missing, wrong or expired. The connection is closed."""

    code = "unauthorized"
    default_message = (
        "this server wants a token: in a connection's first frame, or over HTTP as "
        "`Authorization: Bearer TOKEN`"
    )


class ForbiddenError(QaError):
    """A command that takes the right `admin`."""

    code = "forbidden"
    default_message = "this takes a token with the right `admin`"


class TlsRequiredError(QaError):
    """A frame without TLS at a server that requires it; sent in clear. The connection is closed."""

    code = "tls_required"
    default_message = "this server speaks TLS"


class DuplicateIdError(QaError):
    """A request with the id of another in flight on the same connection."""

    code = "duplicate_id"


class UnknownModelError(QaError):
    """No model or route has the name asked for, or the model has no such version."""

    code = "unknown_model"


class UnknownCollectionError(QaError):
    """No collection that the client may ask has the name asked for."""

    code = "unknown_collection"


class QuestionTooLongError(QaError):
    """A question that leaves the model no room for the text."""

    code = "question_too_long"


class QueueFullError(QaError):
    code = "queue_full"
    retryable = True
    default_message = "the server's queue is full"


class TextTooLongError(QaError):
    """A text with more tokens than are accepted, or than can be read before its deadline."""

    code = "text_too_long"


class DeadlineExceededError(QaError):
    """The request timed out before an instance began with it."""

    code = "deadline_exceeded"
    retryable = True
    default_message = "the request waited longer than its timeout"


class ExecutionTimeoutError(QaError):
    """The text was begun and given up: not all of it can be read before its deadline."""

    code = "execution_timeout"
    default_message = "the text was begun, but cannot be read within its timeout"


class CancelledError(QaError):
    code = "cancelled"
    default_message = "the client has cancelled this request"


class WorkerCrashedError(QaError):
    """Every instance that ran this request died."""

    code = "worker_crashed"
    default_message = "the inference instance died while running this request"


class FrameTimeoutError(QaError):
    """A frame whose end did not arrive in time; the connection is closed."""

    code = "frame_timeout"
    retryable = True
    default_message = "the rest of a frame did not come in time"


class HttpError(QaError):
    """An HTTP request that is not served: malformed, over a bound, or for an unknown resource.

    Attributes:
        status: 4xx or 5xx.
    """

    code = "invalid_http"
    default_message = "this is not an HTTP request that is served here"

    def __init__(
        self, message: str = "", *, status: int = 400, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields or {}


class UnavailableError(QaError):
    """No inference instance is alive, and none can be started."""

    code = "unavailable"
    retryable = True
    default_message = "no inference instance is available"


class ShuttingDownError(QaError):
    """The server is draining and takes no new work."""

    code = "shutting_down"
    retryable = True
    default_message = "the server is shutting down"


ERROR_KINDS: dict[str, type[QaError]] = {kind.code: kind for kind in QaError.__subclasses__()}
"""Every kind by its wire code, as which an error crosses from a worker to the loop."""


def list_choices(names: Iterable[object]) -> str:
    """The names to choose from: `there is a`, `there are a, b`, `there is none`."""
    words = [str(name) for name in names]
    return f"there {'are' if len(words) > 1 else 'is'} {', '.join(words) or 'none'}"


@contextmanager
def error_context(place: str) -> Iterator[None]:
    """Puts a place of the configuration before the message of a `SetupError`."""
    try:
        yield
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from None


def hide_password(url: str) -> str:
    """A URL with `***` for its password, whichever characters that has."""
    return re.sub(r"(?s)^((?:\w+://)?[^:/@]*):.*@", r"\1:***@", url)
