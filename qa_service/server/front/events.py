"""Events of a connection. The server's own faults are logged once and become errors."""

from __future__ import annotations

import logging

from qa_service.errors import InternalError, QaError
from qa_service.server.front.timeouts import Timeout
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.server.telemetry.metrics import ANSWERED
from qa_service.wire.codec import Codec, Message
from qa_service.wire.messages import Answered, Query, RejectedError

logger = logging.getLogger(__name__)


def next_event(codec: Codec, name: str) -> Message | RejectedError | QaError | None:
    """Returns the next message, or the error in it or in the stream; None without a whole one."""
    try:
        return codec.next_message()
    except (RejectedError, QaError) as error:
        if error.__cause__:  # the server's own fault, after which the codec can go on
            logger.error("%s: a message was not read", name, exc_info=error.__cause__)
        return error
    except Exception:
        logger.exception("%s: its stream could not be followed", name)
        return InternalError()


def kind_of(event: object) -> object:
    """The key of an event in a connection's table: a timeout itself, else its type."""
    kind = type(event)
    if kind is Timeout:
        return event
    return QaError if issubclass(kind, QaError) else kind


def say(event: object) -> str:
    """An event for the log, without a client's text or token."""
    return f"{event.type} query" if isinstance(event, Query) else str(kind_of(event))


def submit(service: Service, call: Call) -> None:
    """Submits a call; an exception fails the call, so that it has one answer."""
    try:
        service.submit(call)
    except Exception:
        logger.exception("request %s: it could not be submitted", call.scope.name)
        call.fail(InternalError())


def encode_outcome(codec: Codec, call: Call, outcome: Outcome) -> tuple[str, bytes | bytearray]:
    """The code of an outcome, and the reply's bytes."""
    if isinstance(outcome, Answered):
        try:
            return ANSWERED, codec.encode_answers(call.request, outcome)
        except Exception:
            logger.exception("request %s: its answers could not be encoded", call.scope.name)
            outcome = InternalError()
    return outcome.code, codec.encode_error(call.request, outcome)
