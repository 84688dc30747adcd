"""One client: messages in, calls out, answers back.

    UNAUTHENTICATED ───token accepted───▶ OPEN ──▶ CLOSING (sends its last answers) ──▶ CLOSED
       │  └─open query─▶ PROBING ──same──▶┘           ▲  └───────────────────────────────▲
       └──────────────────┴──refused, too late────────┘

A connection that is to end says so in its next answers. Over HTTP the last one ends it; with frames
it takes requests for `CLOSING_GRACE_S` more, as the client may have sent some before it reads that.

At its bound of requests in flight or of unread answers, a connection takes no more messages, which
slows its client down; it reads a little ahead all the same, to see its client disconnect. A turn
takes a bounded number of messages, so that a thousand small ones in one segment do not hold up
other clients, and a costly message ends the turn. A message that cancels a request is taken at the
bound of those in flight too.

An exception while handling a message is the server's own fault: it is logged once, the message is
answered `internal_error`, and the connection stays open if the start of the next message is known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qa_service.errors import (
    ForbiddenError,
    FrameTimeoutError,
    HttpError,
    InternalError,
    QaError,
    UnauthorizedError,
)
from qa_service.net.stream import ByteStream
from qa_service.net.timers import Clock, LazyTimer
from qa_service.server.front.calls import Calls
from qa_service.server.front.connection_options import ConnectionOptions
from qa_service.server.front.timeouts import CLOSING_GRACE_S, State, Timeout, Timeouts
from qa_service.server.front.tokens import Authenticator, Grant
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.server.services.tracing import Tracer
from qa_service.server.telemetry.metrics import ANSWERED, Metrics
from qa_service.wire.codec import Codec, Message, Wait
from qa_service.wire.messages import (
    COMMANDS,
    NULL_ID,
    Answered,
    Auth,
    Cancel,
    Query,
    RejectedError,
    Request,
)

logger = logging.getLogger(__name__)

MESSAGES_A_TURN = 16  # short ones take some microseconds each
COSTLY_MESSAGE_BYTES = 16384  # a longer message ends the turn: it may take milliseconds to parse
READ_AHEAD_BYTES = 65536  # as much as one read brings


class Connection:
    """A client's connection.

    Args:
        codec_for: Chooses the protocol by the client's first bytes. For `b""`: the codec for errors
            sent before any bytes arrive.
        tracer: Records spans of its requests; None if nothing is traced.
        on_end: Called once when the connection ends by itself; not after `close`.
    """

    def __init__(
        self,
        stream: ByteStream,
        codec_for: Callable[[bytes], Codec],
        service: Service,
        limits: ConnectionOptions,
        *,
        clock: Clock,
        authenticator: Authenticator,
        report: Callable[[Query, str], object],
        metrics: Metrics,
        tracer: Tracer | None = None,
        on_end: Callable[[Connection], None],
        name: str = "",
    ) -> None:
        self.name = name
        self.calls = Calls(name, clock, metrics, tracer)
        self._stream = stream
        self._codec_for = codec_for
        self._codec = codec_for(b"")
        self.has_spoken = False
        self._service = service
        self._limits = limits
        self._clock = clock
        self._authenticator = authenticator
        self._report = report
        self._metrics = metrics
        self._on_end = on_end
        self._grant = Grant(name=name, max_priority=limits.max_priority)
        self._turn_is_due = False
        self._times = Timeouts(limits, clock)
        self._state = State.UNAUTHENTICATED if authenticator.is_required else State.OPEN
        self._timer = LazyTimer(clock, self._on_timer)
        stream.start(self._on_data, self._on_stream_end, self._take_turn)
        self._arm_timeout()

    @property
    def is_busy(self) -> bool:
        """Whether it has calls in flight, or messages that wait for a turn or for output."""
        is_held_up = self._codec.buffered_bytes and self._stream.output_bytes
        return bool(self.calls.in_flight or is_held_up or self._turn_is_due)

    @property
    def silent_since_s(self) -> float:
        """Since when nothing has come or was answered; infinity while the client waits or reads."""
        is_owed = self.calls.in_flight or self._turn_is_due or self._stream.output_bytes
        return math.inf if is_owed else self._times.active_s

    def close_when_idle(self, when_idle_s: float) -> None:
        """Has the next answer say that it closes; at `when_idle_s` it closes if it is idle then."""
        self._times.close_when_idle(when_idle_s)
        self._arm_timeout()

    def close_gently(self) -> None:
        """Takes no more messages, sends its output, and closes."""
        self._state = State.CLOSING
        self._stream.close_gently()

    def close(self) -> None:
        """Closes at once; `on_end` is not called."""
        self._state = State.CLOSED
        self._timer.cancel()
        self._stream.close()

    def _on_data(self, data: bytes) -> None:
        if self._state in _TAKES_MESSAGES:
            self._times.active_s = self._clock.now_s()
            if not self.has_spoken:
                self.has_spoken = True
                self._codec = self._codec_for(data)
            self._codec.feed(data)
            self._take_turn()

    def _on_stream_end(self) -> None:
        """The client has disconnected: its calls are cancelled."""
        self._state = State.CLOSED
        self._timer.cancel()
        self.calls.abandon_all()
        self._on_end(self)

    def _on_settled(self, call: Call, outcome: Outcome) -> None:
        try:
            self.calls.in_flight.discard(call)
            now_s = self._clock.now_s()
            if is_leaving := self._times.says_close(now_s):
                self._codec.announce_close()
            code, reply = self._encode(call, outcome)
            if code != ANSWERED and (unwanted := self._codec.take_cancelled()):
                self.calls.abandon(unwanted)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("request %s: %s", call.scope.name, code, extra=call.scope.log_extra)
            self._metrics.requests_total[code] += 1
            self._times.active_s = now_s
            self._write(reply)
            if is_leaving:
                self._arm_timeout()
            if self._state is State.CLOSING:
                self._close_when_answered()
            elif is_leaving and self._is_due_to_leave():
                self.close_gently()
            elif self._codec.buffered_bytes:
                self._schedule_turn()
        except Exception:
            logger.exception("request %s: it could not be answered; closing", call.scope.name)
            self._end()

    def _encode(self, call: Call, outcome: Outcome) -> tuple[str, bytes]:
        """The code of an outcome, and the reply's bytes."""
        if isinstance(outcome, Answered):
            try:
                return ANSWERED, self._codec.encode_answers(call.request, outcome)
            except Exception:
                logger.exception("request %s: its answers could not be encoded", call.scope.name)
                outcome = InternalError()
        return outcome.code, self._codec.encode_error(call.request, outcome)

    def _write(self, data: bytes) -> None:
        """Writes encoded bytes, and closes after them if the codec has ended."""
        if data:
            # Of several calls, others may end in this round: one write is for all.
            write = self._stream.write_soon if self.calls.in_flight else self._stream.write
            write(data)
            if self._stream.waiting_since_s is not None:
                self._arm_timeout()
        if self._codec.has_ended:
            self._state = State.CLOSING
            self._close_when_answered()

    def _schedule_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._clock.call_soon(self._due_turn)

    def _due_turn(self) -> None:
        self._turn_is_due = False
        self._take_turn()

    def _take_turn(self) -> None:
        """Handles a bounded number of messages, while there is room for their requests."""
        codec, is_starved = self._codec, False
        for _ in range(MESSAGES_A_TURN):
            if self._state not in _TAKES_MESSAGES or not self._stream.is_open:
                return
            if not codec.buffered_bytes or not self._has_room():
                break
            if (event := self._next_event()) is None:
                is_starved = codec.waits_for is Wait.BYTES
                if codec.waits_for is Wait.TURN:
                    self._schedule_turn()
                break
            self._handle(event)
            self._times.message_since_s = None
            if type(event) is Query or codec.last_message_bytes > COSTLY_MESSAGE_BYTES:
                self._schedule_turn()
                break
        else:
            self._schedule_turn()
        buffered_bytes = codec.buffered_bytes
        if is_starved and buffered_bytes and self._times.message_since_s is None:
            self._times.message_since_s = self._times.active_s
        self._stream.set_reading(is_starved or buffered_bytes < READ_AHEAD_BYTES)
        # A later deadline may have ended: that of a half message, of unread output or of a token.
        self._arm_timeout()

    def _has_room(self) -> bool:
        if self._stream.output_bytes > self._limits.max_output_buffer_bytes:
            return False
        has_place = len(self.calls.in_flight) < self._limits.max_in_flight_per_connection
        return has_place or self._codec.next_is_cancel

    def _next_event(self) -> Message | RejectedError | QaError | None:
        """The next message, or the error in it or in the stream; None without a whole one."""
        try:
            return self._codec.next_message()
        except (RejectedError, QaError) as error:
            if error.__cause__:  # the server's own fault, after which the codec can go on
                logger.error("%s: a message was not read", self.name, exc_info=error.__cause__)
            return error
        except Exception:
            logger.exception("%s: its stream could not be followed", self.name)
            return InternalError()

    def _handle(self, event: object) -> None:
        """Handles an event as `_TABLE` says; an exception becomes an `internal_error`."""
        kind = event if type(event) is Timeout else type(event)
        if isinstance(event, QaError):
            kind = QaError
        try:
            _TABLE[self._state, kind](self, event)
        except Exception:
            # Without a client's text or token.
            words = f"{event.type} query" if isinstance(event, Query) else kind
            logger.exception("%s: not handled: %s", self.name, words)
            if isinstance(event, Query):
                self._reject(RejectedError(event.id_json, InternalError()))
            elif isinstance(event, Request):
                self._metrics.requests_total[InternalError.code] += 1
                self._write(self._codec.encode_error(event, InternalError()))
            else:
                self._break_off(InternalError())

    def _authenticate(self, auth: Auth) -> None:
        try:
            self._grant = self._authenticator.authenticate(auth.token) or self._grant
        except UnauthorizedError as error:
            self._refuse(error)
            return
        self._state = State.OPEN
        self._write(self._codec.encode_authenticated(auth))

    def _refuse(self, event: object) -> None:
        error = event.error if isinstance(event, RejectedError) else event
        if not isinstance(error, UnauthorizedError | HttpError | InternalError):
            error = UnauthorizedError()
        logger.info("%s is refused: %s", self.name, error.message, extra={"peer": self.name})
        self._break_off(error)

    def _refuse_late(self, _: Timeout) -> None:
        self._refuse(UnauthorizedError("no token has come in time"))

    def _submit(self, request: Request) -> None:
        call = self.calls.begin(request, self._grant, self._codec, self._times)
        call.then(partial(self._on_settled, call))
        try:
            self._service.submit(call)
        except Exception:
            logger.exception("request %s: it could not be submitted", call.scope.name)
            call.fail(InternalError())

    def _answer_open_query(self, query: Query) -> None:
        if query.is_open:
            self._state = State.PROBING
            self._answer_query(query)
        else:
            self._refuse(query)

    def _answer_query(self, query: Query) -> None:
        try:
            if query.type in COMMANDS:
                if not self._grant.admin:
                    raise ForbiddenError
                logger.info("%s: %s %s", self._grant.name, query.type, query.model[:64])
            report = self._report(query, self._grant.name)
        except QaError as error:
            self._reject(RejectedError(query.id_json, error))
        else:
            self._write(self._codec.encode_report(query, report))

    def _reject(self, rejected: RejectedError) -> None:
        code = rejected.error.code
        logger.debug("%s: message rejected, its id is %r: %s", self.name, rejected.id_json, code)
        self._metrics.requests_total[code] += 1
        self._write(self._codec.encode_rejection(rejected))

    def _break_off(self, error: QaError) -> None:
        """Closes a stream that cannot be followed; earlier requests are still answered."""
        self._state = State.CLOSING
        self._times.message_since_s = None
        self._reject(RejectedError(NULL_ID, error))
        self._close_when_answered()

    def _drop(self, _: Timeout) -> None:
        words = "%s is idle or does not read its answers: closed"
        logger.info(words, self.name, extra={"peer": self.name})
        self._end()

    def _end(self) -> None:
        self._stream.close()
        self._on_stream_end()

    def _is_due_to_leave(self) -> bool:
        """Whether its time is over and it is idle."""
        if self._clock.now_s() < self._times.ages_at_s:
            return False
        is_free = not (self.calls.in_flight or self._codec.buffered_bytes or self._turn_is_due)
        return is_free and self._state in _LASTING

    def _leave(self, _: Timeout) -> None:
        if self._is_due_to_leave():
            self.close_gently()
        else:
            self._timer.arm(self._clock.now_s() + CLOSING_GRACE_S)

    def _close_when_answered(self) -> None:
        if not self.calls.in_flight:
            self._stream.close_gently()

    def _deadline(self) -> tuple[float, Timeout]:
        return self._times.deadline(self._state, self.calls.in_flight, self._stream.waiting_since_s)

    def _arm_timeout(self) -> None:
        """Sets the timer after what may bring the deadline nearer: else it only moves later."""
        if self._stream.is_open:
            self._timer.arm(self._deadline()[0])

    def _on_timer(self) -> None:
        deadline_s, timeout = self._deadline()
        if self._clock.now_s() < deadline_s or not self._stream.is_open:
            self._arm_timeout()
        else:
            self._handle(timeout)


_UNKNOWN = (State.UNAUTHENTICATED, State.PROBING)
_LASTING = (State.PROBING, State.OPEN)
_TAKES_MESSAGES = (State.UNAUTHENTICATED, *_LASTING)

_ROWS: Sequence[tuple[Sequence[State], object, Callable[[Connection, Any], None]]] = (
    (_TAKES_MESSAGES, Auth, Connection._authenticate),
    (_UNKNOWN, Request, Connection._refuse),
    (_UNKNOWN, Cancel, Connection._refuse),
    (_UNKNOWN, Query, Connection._answer_open_query),
    (_UNKNOWN, RejectedError, Connection._refuse),
    (_UNKNOWN, QaError, Connection._refuse),
    ([State.OPEN], Request, Connection._submit),
    ([State.OPEN], Cancel, lambda its, event: its.calls.cancel(event.id_json)),
    ([State.OPEN], Query, Connection._answer_query),
    ([State.OPEN], RejectedError, Connection._reject),
    ([State.OPEN], QaError, Connection._break_off),
    ([State.UNAUTHENTICATED], Timeout.AUTHENTICATING, Connection._refuse_late),
    (_LASTING, Timeout.SENDING, lambda its, _: its._break_off(FrameTimeoutError())),
    ((*_LASTING, State.CLOSING), Timeout.READING, Connection._drop),
    ((*_LASTING, State.CLOSING), Timeout.ASKING, Connection._drop),
    (_LASTING, Timeout.LEAVING, Connection._leave),
)
_TABLE = {(state, kind): do for states, kind, do in _ROWS for state in states}
"""What each event does in each state: a timeout itself, any `QaError`, else the event's type. A
missing pair cannot happen; it would be our bug."""
