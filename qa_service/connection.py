"""One client: frames in, tickets out, answers back.

It takes no more frames, and so slows its client down, while it has as many requests in flight
as it may, or more unread answers than it may hold; it reads a little ahead all the same, so as
to see its client hang up. What it takes in one turn is bounded, so that a thousand small frames
in one segment do not hold up the other clients.

Its first frame is for `Admission` to judge; until that has let the client in, nothing is run.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qa_service.admission import Admission
from qa_service.errors import (
    DuplicateIdError,
    FrameTimeoutError,
    FrameTooLargeError,
    QaError,
    UnauthorizedError,
)
from qa_service.event_loop import EventLoop, LazyTimer
from qa_service.metrics import ANSWERED
from qa_service.protocol import (
    NULL_ID,
    Answer,
    FrameReader,
    Query,
    RejectedError,
    Request,
    RequestLimits,
    Timings,
    encode_answers,
    encode_error,
    encode_report,
    parse_request,
)
from qa_service.scheduler import Ticket

logger = logging.getLogger(__name__)

FRAMES_A_TURN = 16
READ_AHEAD_BYTES = 65536


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on one client.

    Attributes:
        max_frame_bytes: Bytes in one request.
        max_in_flight: Unanswered requests.
        max_output_buffer_bytes: Bytes of unread answers.
        idle_timeout_s: With nothing to do.
        frame_timeout_s: From a frame's first byte to its last.
        stall_timeout_s: With answers waiting and none of them read.
        request: Bounds on what a request may ask.
    """

    max_frame_bytes: int
    max_in_flight: int
    max_output_buffer_bytes: int
    idle_timeout_s: float
    frame_timeout_s: float
    stall_timeout_s: float
    request: RequestLimits


class ConnectionOwner(Protocol):
    """Who hears from a connection: the server."""

    def on_request(self, connection: Connection, request: Request) -> Ticket:
        """A request has come.

        Raises:
            QaError: It is not accepted; the connection answers with this.
        """

    def on_query(self, query: Query) -> object:
        """Something is asked about the server; returns the report that answers it."""

    def on_outcome(self, outcome: str) -> None:
        """A request has been answered, or refused or failed with an error of that code."""

    def on_connection_end(self, connection: Connection) -> None:
        """The client has gone, or is not served any more."""


class Connection:
    """A client's connection.

    Attributes:
        name: Its peer's address, for the log.
        tickets: Its requests in flight, by ticket key.
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        name: str,
        limits: ConnectionLimits,
        owner: ConnectionOwner,
        *,
        admission: Admission,
    ) -> None:
        self.name = name
        self.tickets: dict[int, Ticket] = {}
        self._ids: set[bytes] = set()
        self._loop = loop
        self._limits = limits
        self._owner = owner
        self._admission = admission
        self._is_greeted = False
        self._frames = FrameReader(admission.first_frame_bytes(limits.max_frame_bytes))
        self._turn_is_due = False
        self._is_lost = False
        self._active_s = loop.now_s()
        self._frame_since_s: float | None = None
        self._auth_by_s = math.inf
        if admission.wants_token:
            self._auth_by_s = self._active_s + admission.auth_timeout_s
        self._patience = LazyTimer(loop, self._check_patience)
        self._stream = admission.open_stream(
            sock, name, self._on_data, self._on_end, self._take_turn
        )
        self._be_patient()

    def wants(self, ticket: Ticket) -> bool:
        """See `TicketOwner`."""
        return ticket.key in self.tickets

    def answer(self, ticket: Ticket, answers: Sequence[Answer], timings: Timings) -> None:
        """See `TicketOwner`."""
        request = ticket.request
        frame = encode_answers(request.id_json, answers, timings, request.top_k)
        self._finish(ticket, ANSWERED, frame)

    def fail(self, ticket: Ticket, error: QaError) -> None:
        """See `TicketOwner`."""
        self._finish(ticket, error.code, encode_error(ticket.request.id_json, error))

    def close_gently(self) -> None:
        """Takes nothing more, sends what there is, and closes."""
        self._stream.close_gently()

    def close(self) -> None:
        """Closes at once; its owner hears nothing more of it."""
        self._patience.cancel()
        self._stream.close()

    def _finish(self, ticket: Ticket, outcome: str, frame: bytearray) -> None:
        if self.tickets.pop(ticket.key, None) is None:
            return
        logger.debug("%s: request %d: %s", self.name, ticket.key, outcome)
        self._owner.on_outcome(outcome)
        self._ids.discard(ticket.request.id_json)
        self._active_s = self._loop.now_s()
        self._stream.write(frame)
        self._be_patient()
        if self._is_lost:
            self._close_when_answered()
        elif self._frames.buffered_bytes:
            self._schedule_turn()

    def _on_data(self, data: bytes) -> None:
        if not self._is_lost:
            self._active_s = self._loop.now_s()
            self._frames.feed(data)
            self._take_turn()

    def _on_end(self) -> None:
        self._patience.cancel()
        self._owner.on_connection_end(self)

    def _schedule_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._due_turn)

    def _due_turn(self) -> None:
        self._turn_is_due = False
        self._take_turn()

    def _take_turn(self) -> None:
        """Handles a bounded number of frames, while there is room for their requests."""
        is_starved = False
        for _ in range(FRAMES_A_TURN):
            if self._is_lost or not self._stream.is_open:
                return
            if not self._has_room():
                break
            if (body := self._next_frame()) is None:
                is_starved = True
                break
            self._frame_since_s = None
            if self._handle(body):
                self._schedule_turn()
                break
        else:
            self._schedule_turn()
        if is_starved and self._frames.buffered_bytes and self._frame_since_s is None:
            self._frame_since_s = self._active_s
        self._stream.set_reading(is_starved or self._frames.buffered_bytes < READ_AHEAD_BYTES)
        self._be_patient()

    def _next_frame(self) -> bytes | None:
        try:
            return self._frames.next_frame()
        except FrameTooLargeError as error:
            if self._is_stranger:
                self._turn_away(UnauthorizedError())
            else:
                self._give_up(error)
            return None

    def _give_up(self, error: QaError) -> None:
        """The stream can't be followed any more, but what came before is still answered."""
        self._is_lost = True
        self._frame_since_s = None
        self._reject(NULL_ID, error)
        self._close_when_answered()

    def _close_when_answered(self) -> None:
        if not self.tickets:
            self._stream.close_gently()

    def _late_at_s(self) -> float:
        """When the client is late, if nothing changes: with reading, writing, or anything."""
        if self._is_stranger:
            return self._auth_by_s
        if self._stream.waiting_since_s is not None:
            return self._stream.waiting_since_s + self._limits.stall_timeout_s
        if self._frame_since_s is not None:
            return self._frame_since_s + self._limits.frame_timeout_s
        return math.inf if self.tickets else self._active_s + self._limits.idle_timeout_s

    def _be_patient(self) -> None:
        if self._stream.is_open:
            self._patience.by(self._late_at_s())

    def _check_patience(self) -> None:
        if self._loop.now_s() < self._late_at_s() or not self._stream.is_open:
            self._be_patient()
        elif self._is_stranger:
            self._turn_away(UnauthorizedError("no token has come in time"))
        elif self._frame_since_s is not None and self._stream.waiting_since_s is None:
            self._give_up(FrameTimeoutError())
        else:
            logger.info("%s is idle or does not read its answers: closed", self.name)
            self._stream.close()
            self._on_end()

    def _has_room(self) -> bool:
        return (
            len(self.tickets) < self._limits.max_in_flight
            and self._stream.output_bytes <= self._limits.max_output_buffer_bytes
        )

    @property
    def _is_stranger(self) -> bool:
        """Whether it has a token to show yet."""
        return self._auth_by_s < math.inf

    def _greet(self, body: bytes) -> bool:
        """Takes the first frame; says whether that was all about being let in."""
        try:
            reply = self._admission.greet(body)
        except UnauthorizedError as error:
            self._turn_away(error)
            return True
        self._is_greeted = True
        self._auth_by_s = math.inf
        self._frames.max_frame_bytes = self._limits.max_frame_bytes
        if reply:
            self._stream.write(reply)
        return reply is not None

    def _turn_away(self, error: UnauthorizedError) -> None:
        logger.info("%s is refused: %s", self.name, error.message)
        self._give_up(error)

    def _handle(self, body: bytes) -> bool:
        """Handles a frame; says whether it cost the loop so much that the turn should end."""
        if not self._is_greeted and self._greet(body):
            return False
        try:
            request = parse_request(body, self._limits.request)
            if isinstance(request, Query):
                self._stream.write(encode_report(request, self._owner.on_query(request)))
                return True
            self._accept(request)
        except RejectedError as rejected:
            self._reject(rejected.id_json, rejected.error)
        return False

    def _accept(self, request: Request) -> None:
        id_json = request.id_json
        if id_json in self._ids:
            message = "a request with this id is still in flight on this connection"
            raise RejectedError(id_json, DuplicateIdError(message))
        try:
            ticket = self._owner.on_request(self, request)
        except QaError as error:
            raise RejectedError(id_json, error) from None
        logger.debug("%s: request %d: accepted, its id is %r", self.name, ticket.key, id_json)
        self.tickets[ticket.key] = ticket
        if id_json != NULL_ID:
            self._ids.add(id_json)

    def _reject(self, id_json: bytes, error: QaError) -> None:
        logger.debug("%s: a request is rejected, its id is %r: %s", self.name, id_json, error.code)
        self._owner.on_outcome(error.code)
        self._stream.write(encode_error(id_json, error))
