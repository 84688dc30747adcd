"""Events of a connection, and faults of the server's own in them: logged once, told as errors."""

from __future__ import annotations

import logging

from qa_service.errors import InternalError, QaError
from qa_service.front.states import Timeout
from qa_service.scheduling.call import Answered, Call, Outcome
from qa_service.serving.service import Service
from qa_service.telemetry.metrics import ANSWERED
from qa_service.wire.codec import Codec, Message
from qa_service.wire.messages import Query, RejectedError

logger = logging.getLogger(__name__)


def next_event(codec: Codec, name: str) -> Message | RejectedError | QaError | None:
    """Takes out the next message, or what is wrong with it or with the stream.

    Args:
        name: The peer's address, for the log.
    """
    try:
        return codec.next_message()
    except (RejectedError, QaError) as error:
        if error.__cause__:  # a fault of the server's, behind which the codec can go on
            logger.error("%s: a message was not read", name, exc_info=error.__cause__)
        return error
    except Exception:
        logger.exception("%s: its stream could not be followed", name)
        return InternalError()


def kind_of(event: object) -> object:
    """What a connection's table has for an event: a timeout itself, else its type."""
    if isinstance(event, Timeout):
        return event
    return QaError if isinstance(event, QaError) else type(event)


def say(event: object) -> str:
    """An event for the log, without what a client asks or shows."""
    return f"{event.type} query" if isinstance(event, Query) else str(kind_of(event))


def submit(service: Service, call: Call) -> None:
    """Submits a request, or fails it; raises nothing, so that it has one answer."""
    try:
        service.submit(call)
    except Exception:
        logger.exception("request %s: it could not be submitted", call.scope.name)
        call.fail(InternalError())


def encode_outcome(codec: Codec, call: Call, outcome: Outcome) -> tuple[str, bytes | bytearray]:
    """The code of what a request came to, and what its client is told."""
    if isinstance(outcome, Answered):
        answers, timings, source = outcome.answers, outcome.timings, outcome.source
        try:
            return ANSWERED, codec.encode_answers(call.request, answers, timings, source)
        except Exception:
            logger.exception("request %s: its answers could not be encoded", call.scope.name)
            outcome = InternalError()
    return outcome.code, codec.encode_error(call.request, outcome)
