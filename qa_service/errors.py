"""What can go wrong, and what the client is told about it.

Two families. A `QaError` is an answer: it has a stable wire code, says whether the same
request may succeed if sent again, and carries a message that is safe to send (no paths, no
stack, nothing of another client's). A `SetupError` is for the person at the terminal: the
program cannot start, and the message names the way out.
"""

from __future__ import annotations

from typing import ClassVar


class SetupError(Exception):
    """The program cannot start as asked; the message is one line that says what to do."""

    exit_code: ClassVar[int] = 2


class DeviceError(SetupError):
    """The device asked for is not there, or the libraries installed cannot use it."""


class SessionsLostError(SetupError):
    """The server ran, but its sessions died and none can be started any more."""

    exit_code = 3


class QaError(Exception):
    """A request's error answer.

    Attributes:
        code: Stable lower_snake name of the kind, as `docs/PROTOCOL.md` lists it.
        retryable: Whether the same request may succeed when sent again.
        message: What happened, in words that are safe to send.
        retry_after_ms: When to try again, where that is known.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    default_message: ClassVar[str] = "the server failed to answer this request"

    def __init__(self, message: str = "", *, retry_after_ms: int | None = None) -> None:
        self.message = message or self.default_message
        self.retry_after_ms = retry_after_ms
        super().__init__(self.message)


class InternalError(QaError):
    """A fault of ours, whose details are in the server's log."""


class FrameTooLargeError(QaError):
    """A length prefix over the limit; the stream cannot be followed past it."""

    code = "frame_too_large"


class InvalidFrameError(QaError):
    """A frame that is not UTF-8 JSON."""

    code = "invalid_frame"


class InvalidRequestError(QaError):
    """JSON that is not a request: a field is missing, of a wrong type, or out of bounds."""

    code = "invalid_request"


class UnauthorizedError(QaError):
    """No token that is let in: it is missing, wrong or expired. The connection ends."""

    code = "unauthorized"
    default_message = "this server wants a token in a connection's first frame"


class TlsRequiredError(QaError):
    """The bare protocol where TLS is spoken; told in clear. The connection ends."""

    code = "tls_required"
    default_message = "this server speaks TLS"


class DuplicateIdError(QaError):
    """A request with the id of one that is still in flight on the same connection."""

    code = "duplicate_id"


class QuestionTooLongError(QaError):
    """A question that leaves the model no room for the text."""

    code = "question_too_long"


class QueueFullError(QaError):
    """The server has as much waiting work as it is allowed to hold."""

    code = "queue_full"
    retryable = True
    default_message = "the server's queue is full"


class DeadlineExceededError(QaError):
    """The request's time ran out before a session took it."""

    code = "deadline_exceeded"
    retryable = True
    default_message = "the request waited longer than its timeout"


class WorkerCrashedError(QaError):
    """Every session that ran this request died of it."""

    code = "worker_crashed"
    default_message = "the inference session died while running this request"


class FrameTimeoutError(QaError):
    """A frame whose end did not come in time; the stream is given up."""

    code = "frame_timeout"
    retryable = True
    default_message = "the rest of a frame did not come in time"


class UnavailableError(QaError):
    """No inference session is alive, and none can be started."""

    code = "unavailable"
    retryable = True
    default_message = "no inference session is available"


class ShuttingDownError(QaError):
    """The server is draining and takes no new work."""

    code = "shutting_down"
    retryable = True
    default_message = "the server is shutting down"


ERROR_KINDS: dict[str, type[QaError]] = {
    kind.code: kind
    for kind in (
        InternalError,
        FrameTooLargeError,
        FrameTimeoutError,
        InvalidFrameError,
        InvalidRequestError,
        UnauthorizedError,
        TlsRequiredError,
        DuplicateIdError,
        QuestionTooLongError,
        QueueFullError,
        DeadlineExceededError,
        WorkerCrashedError,
        UnavailableError,
        ShuttingDownError,
    )
}
"""Every kind by its wire code: how an error crosses from a worker to the loop."""
