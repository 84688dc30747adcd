"""The interface of a protocol: bytes in, typed messages out, and back. Sans-IO.

A codec belongs to one connection and keeps the protocol's state, and nothing else: it knows no
socket, no clock and no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from qa_service.errors import QaError
from qa_service.wire.messages import Answered, Auth, Cancel, Query, RejectedError, Request
from qa_service.wire.traces import TraceContext

Message = Request | Query | Cancel | Auth


class Wait(Enum):
    """What a codec waits for if it has no message."""

    BYTES = auto()
    """The rest of a message."""
    TURN = auto()
    """Its next turn: it has parsed as much as one allows."""
    ANSWERS = auto()
    """Earlier answers, which must go out first."""


class Codec(Protocol):
    """One connection's protocol. The bytes that its methods return may be written at once."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes held that no message has taken out yet."""

    @property
    def last_message_bytes(self) -> int:
        """The length of the last message."""

    @property
    def waits_for(self) -> Wait:
        """Why the last call of `next_message` gave nothing."""

    @property
    def has_ended(self) -> bool:
        """Whether the connection must be closed once all encoded bytes are written."""

    @property
    def next_is_cancel(self) -> bool:
        """Whether the next message withdraws a request, which needs no room and may make some."""

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the stream."""

    def next_message(self) -> Message | None:
        """Takes out the next message; None if there is none for now.

        Raises:
            RejectedError: The message is wrong; its sender gets the error, the stream goes on.
                With a cause, the fault is the server's.
            QaError: The stream cannot be followed any further.
        """

    def encode_answers(self, request: Request, answered: Answered) -> bytes:
        """Encodes the answers to a request."""

    def encode_error(self, request: Request, error: QaError) -> bytes:
        """Encodes why a request has no answer."""

    def trace_of(self, request: Request) -> TraceContext:
        """The trace that a request belongs to."""

    def span_attributes(self, request: Request) -> dict[str, str]:
        """OpenTelemetry's attributes for the span of a request."""

    def take_cancelled(self) -> Sequence[Request]:
        """Takes sibling questions to cancel after one failed."""

    def encode_rejection(self, rejected: RejectedError) -> bytes:
        """Encodes what is wrong with a message or, if the id is null, with the stream."""

    def encode_report(self, query: Query, report: object) -> bytes:
        """Encodes the answer to a query about the server."""

    def announce_close(self) -> None:
        """Has the next replies say that the connection ends.

        Over HTTP it is the last one, behind which `has_ended`; in frames each of them, since a
        client may have sent more requests before it reads that.
        """

    def encode_authenticated(self, auth: Auth) -> bytes:
        """Encodes that a token was accepted."""
