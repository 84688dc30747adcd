"""Admission by work: a request that cannot be done in time is refused at once. Sans-IO."""

from __future__ import annotations

import math

from qa_service.errors import DeadlineExceededError, QueueFullError, TextTooLongError
from qa_service.server.scheduling.scheduler import Scheduler
from qa_service.server.scheduling.ticket import Ticket

MAX_RETRY_AFTER_MS = 10_000
"""The queue may empty sooner than it takes to run, as clients leave and instances start: no client
is asked to wait longer than this."""
QUEUE_TIMEOUTS = 2
"""The queue may hold work for this many times the longest that a request may wait: of more, much
would expire before its turn."""


def admit(ticket: Ticket, scheduler: Scheduler, *, ms_per_cost: float, time_ms: float) -> None:
    """Checks that a request may join the queue.

    Args:
        ms_per_cost: Milliseconds that all instances together need for a unit of cost.
        time_ms: Time until the request's deadline, by which it has to begin.

    Raises:
        DeadlineExceededError: The deadline has passed.
        QueueFullError: The queue is full or too long; says when to try again.
    """
    if time_ms <= 0.0:
        raise DeadlineExceededError
    total_ms = _check_queue(ticket, scheduler, ms_per_cost)
    if total_ms > time_ms:
        _check_time(scheduler.flows.cost_before(ticket) * ms_per_cost, time_ms)


def admit_long(ticket: Ticket, scheduler: Scheduler, *, ms_per_cost: float, time_ms: float) -> None:
    """Checks that a text of many segments may join, and can be finished in time.

    Args:
        ms_per_cost: Milliseconds that all instances together need for a unit of cost.
        time_ms: Time until the deadline, by which the whole text has to be done.

    Raises:
        DeadlineExceededError: The deadline has passed, or the text takes longer even alone and
            would not with a longer timeout.
        TextTooLongError: The text takes longer even alone than any request may.
        QueueFullError: The queue is full, or too long for the text; says when to try again.
    """
    if time_ms <= 0.0:
        raise DeadlineExceededError
    alone_ms = ticket.cost * ms_per_cost
    if alone_ms > time_ms:
        what, help_words = "the text has", ""
        if ticket.call.request.collection is not None:  # its client does not choose what is read
            what = "the question's passages have"
            help_words = ": ask for fewer `max_passages`, or a longer `timeout_ms`"
        limit = int(ticket.tokens * time_ms / alone_ms)
        message = (
            f"{what} about {ticket.tokens} tokens, which take about {alone_ms:,.0f} ms; about "
            f"{limit} can be read in its {time_ms:,.0f} ms{help_words}"
        )
        fits_in_longest = alone_ms <= ticket.call.scope.max_timeout_s * 1e3
        raise DeadlineExceededError(message) if fits_in_longest else TextTooLongError(message)
    _check_queue(ticket, scheduler, ms_per_cost)
    _check_time(scheduler.flows.cost_until_done(ticket) * ms_per_cost, time_ms)


def _check_queue(ticket: Ticket, scheduler: Scheduler, ms_per_cost: float) -> float:
    """Returns how long the queue takes to run, in milliseconds."""
    total_ms = scheduler.flows.cost * ms_per_cost
    if scheduler.is_full():
        raise QueueFullError(retry_after_ms=_retry_after_ms(total_ms))
    limit_ms = QUEUE_TIMEOUTS * ticket.call.scope.max_timeout_s * 1e3
    if total_ms > limit_ms:
        raise QueueFullError(retry_after_ms=_retry_after_ms(total_ms - limit_ms))
    return total_ms


def _check_time(needed_ms: float, time_ms: float) -> None:
    if needed_ms > time_ms:
        message = "the queue is too long for the request to be done before its deadline"
        raise QueueFullError(message, retry_after_ms=_retry_after_ms(needed_ms - time_ms))


def _retry_after_ms(excess_ms: float) -> int:
    """When a client may send a refused request again: once the excess has been worked off."""
    return max(1, min(math.ceil(excess_ms), MAX_RETRY_AFTER_MS))
