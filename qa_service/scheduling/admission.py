"""Admission by work: what cannot be done in time is refused at once, in words. Sans-IO."""

from __future__ import annotations

import math

from qa_service.errors import DeadlineExceededError, QueueFullError, TextTooLongError
from qa_service.scheduling.options import QueueOptions
from qa_service.scheduling.scheduler import Scheduler
from qa_service.scheduling.ticket import Ticket

MAX_RETRY_AFTER_MS = 10_000
"""What waits may be gone sooner than it takes to run, as clients go and instances come: nobody is
sent away for longer."""


class Admission:
    """Lets work into the queue, within bounds.

    Args:
        options: The bounds.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def admit(
        self, ticket: Ticket, scheduler: Scheduler, *, ms_per_cost: float, time_ms: float
    ) -> None:
        """Lets a request into the queue, or not.

        Args:
            ticket: The request, its cost estimated.
            scheduler: What waits.
            ms_per_cost: Milliseconds that the instances together need for a unit of cost.
            time_ms: How long it may wait for an instance.

        Raises:
            DeadlineExceededError: Its time is over.
            TextTooLongError: It has too many tokens.
            QueueFullError: Too much waits before it; with the time after which less will.
        """
        self._check_request(ticket, time_ms)
        total_ms = self._check_queue(scheduler, ms_per_cost)
        if total_ms > time_ms:
            _check_time(scheduler.cost_before(ticket) * ms_per_cost, time_ms)

    def admit_long(
        self, ticket: Ticket, scheduler: Scheduler, *, ms_per_cost: float, time_ms: float
    ) -> None:
        """Lets a text of many segments in, which must be done and not only begun in time.

        Args:
            ticket: The request, its cost estimated.
            scheduler: What waits.
            ms_per_cost: Milliseconds that the instances together need for a unit of cost.
            time_ms: How long it may take.

        Raises:
            DeadlineExceededError: Its time is over.
            TextTooLongError: It has too many tokens, or alone would take longer than it may.
            QueueFullError: Beside what waits it would; with the time after which it would not.
        """
        self._check_request(ticket, time_ms)
        alone_ms = ticket.cost * ms_per_cost
        if alone_ms > time_ms:
            limit = int(ticket.tokens * time_ms / alone_ms)
            raise TextTooLongError(
                f"the text has about {ticket.tokens} tokens, which take about "
                f"{alone_ms:,.0f} ms; about {limit} can be read in its {time_ms:,.0f} ms"
            )
        self._check_queue(scheduler, ms_per_cost)
        _check_time(scheduler.cost_until_done(ticket) * ms_per_cost, time_ms)

    def _check_request(self, ticket: Ticket, time_ms: float) -> None:
        if time_ms <= 0.0:
            raise DeadlineExceededError
        limit = self._options.max_text_tokens
        if ticket.tokens > limit:
            raise TextTooLongError(
                f"the text has about {ticket.tokens} tokens; at most {limit} are accepted"
            )

    def _check_queue(self, scheduler: Scheduler, ms_per_cost: float) -> float:
        """Returns how long what waits will take, in milliseconds."""
        total_ms = scheduler.waiting_cost * ms_per_cost
        limit_ms = self._options.queue_cost_limit_ms
        if scheduler.is_full:
            raise QueueFullError(retry_after_ms=_retry_after_ms(total_ms))
        if total_ms > limit_ms:
            raise QueueFullError(retry_after_ms=_retry_after_ms(total_ms - limit_ms))
        return total_ms


def _check_time(needed_ms: float, time_ms: float) -> None:
    if needed_ms > time_ms:
        message = "the queue is too long for the request to be done before its deadline"
        raise QueueFullError(message, retry_after_ms=_retry_after_ms(needed_ms - time_ms))


def _retry_after_ms(excess_ms: float) -> int:
    """When a refused request may be sent again: once the excess has been worked off."""
    return max(1, min(math.ceil(excess_ms), MAX_RETRY_AFTER_MS))
