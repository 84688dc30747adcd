"""What a connection needs of a protocol: bytes in, typed messages out, and back. Sans-IO.

A codec belongs to one connection and keeps that protocol's state, and nothing else: it knows no
socket, no clock and no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from qa_service.errors import QaError
from qa_service.wire.messages import (
    UNKNOWN_SOURCE,
    Answer,
    AnswerSource,
    Auth,
    Cancel,
    Query,
    RejectedError,
    Request,
    Timings,
)
from qa_service.wire.trace_context import TraceContext

Message = Request | Query | Cancel | Auth


class Wait(Enum):
    """What a codec waits for where it has no message to give."""

    BYTES = auto()
    """More of a message has to come."""
    TURN = auto()
    """It has parsed as much as one turn allows."""
    ANSWERS = auto()
    """Earlier answers have to go out first."""


class Codec(Protocol):
    """One connection's protocol. What its methods encode may be written at once.

    Attributes:
        buffered_bytes: Bytes held that no message has taken out yet.
        last_message_bytes: How long the last message was.
        waits_for: Why `next_message` gave nothing when it was last called.
        has_ended: Whether the connection is to be closed behind what has been encoded.
        next_is_cancel: Whether the next message needs no room, but may make some.
    """

    @property
    def buffered_bytes(self) -> int: ...  # noqa: D102

    @property
    def last_message_bytes(self) -> int: ...  # noqa: D102

    @property
    def waits_for(self) -> Wait: ...  # noqa: D102

    @property
    def has_ended(self) -> bool: ...  # noqa: D102

    @property
    def next_is_cancel(self) -> bool: ...  # noqa: D102

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the stream."""

    def next_message(self) -> Message | None:
        """Takes out the next message; None if it is not all there yet.

        Raises:
            RejectedError: It is wrong; its sender is told, and the stream goes on. With a cause,
                the fault is the server's.
            QaError: The stream cannot be followed any further.
        """

    def encode_answers(
        self,
        request: Request,
        answers: Sequence[Answer],
        timings: Timings,
        source: AnswerSource = UNKNOWN_SOURCE,
    ) -> bytes | bytearray:
        """Encodes what a request came to.

        Args:
            answers: At least one, best first.
        """

    def encode_error(self, request: Request, error: QaError) -> bytes | bytearray:
        """Encodes why a request has no answer."""

    def trace_of(self, request: Request) -> TraceContext:
        """The trace that a request belongs to."""

    def span_attributes(self, request: Request) -> dict[str, str]:
        """How a request has come, in OpenTelemetry's words: the attributes of its span."""

    def take_unwanted(self) -> Sequence[Request]:
        """Takes sibling questions to cancel after one failed."""

    def encode_rejection(self, rejected: RejectedError) -> bytes | bytearray:
        """Encodes what was wrong with a message, or with the stream where there is no id."""

    def encode_report(self, query: Query, report: object) -> bytes | bytearray:
        """Encodes the answer to a query about the server."""

    def announce_close(self) -> None:
        """The connection is to end: where the protocol has words for that, the last reply has."""

    def encode_authenticated(self, auth: Auth) -> bytes | bytearray:
        """Encodes that a token was accepted."""
