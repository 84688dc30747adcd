"""The bounded queue of requests and the batches made from it. Sans-IO: it is told the time.

    add ──▶ queued ──next_batch──▶ dispatched ──retry──▶ queued again, to run alone
              ├──expired──▶ answered `deadline_exceeded`
              └──remove───▶ forgotten: its client has gone

The request whose turn is oldest leads each batch; its companions are those nearest to it in
length, so that little padding is computed. A request's turn is its arrival, moved forward by
`priority_step_s` for each step of priority: a higher priority overtakes, but only what arrived
less than nine steps before it, so every request's turn comes.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qa_service.errors import QaError, QueueFullError
from qa_service.protocol import Answer, Request, Timings


class TicketOwner(Protocol):
    """Who asked, and is to be answered."""

    def wants(self, ticket: Ticket) -> bool:
        """Whether the ticket is still to be answered: its client has not gone."""

    def answer(self, ticket: Ticket, answers: Sequence[Answer], timings: Timings) -> None:
        """Answers the request; does nothing if it is not wanted any more."""

    def fail(self, ticket: Ticket, error: QaError) -> None:
        """Answers the request with an error; does nothing if it is not wanted any more."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request on its way through the server.

    Attributes:
        key: Its number, given once and never again.
        request: What was asked.
        owner: Who is to be answered; the scheduler only carries it.
        arrived_s: When it arrived, on the clock that the scheduler is told.
        deadline_s: When it expires if no session has taken it; None for never.
        tokens: About how many tokens it will be.
        dispatched_s: When a session last took it.
        attempts: How many sessions have died with it.
    """

    key: int
    request: Request
    owner: TicketOwner
    arrived_s: float
    deadline_s: float | None
    tokens: int
    dispatched_s: float = 0.0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds on the queue and on a batch.

    Attributes:
        max_queue_size: Requests that may wait.
        max_batch_size: Requests in a batch.
        max_batch_tokens: Tokens in a batch, padding included, by the tickets' estimates. A
            longer request still goes, alone.
        max_queue_delay_s: How long a request may wait for companions while a session is idle.
        priority_step_s: How much earlier a step of priority makes a request's turn.
    """

    max_queue_size: int
    max_batch_size: int
    max_batch_tokens: int
    max_queue_delay_s: float = 0.0
    priority_step_s: float = 0.1


def estimate_tokens(request: Request) -> int:
    """Guesses how many tokens a request will be: English has about four characters to one."""
    return 3 + (len(request.question) + len(request.text)) // 4


class _Order:
    """Tickets in the order of one of their figures; the lower key goes first among equals."""

    def __init__(self, figure: Callable[[Ticket], float]) -> None:
        self._figure = figure
        self.items: list[tuple[float, int, Ticket]] = []

    def add(self, ticket: Ticket) -> None:
        bisect.insort(self.items, (self._figure(ticket), ticket.key, ticket))

    def index(self, ticket: Ticket) -> int:
        return bisect.bisect_left(self.items, (self._figure(ticket), ticket.key))

    def remove(self, ticket: Ticket) -> None:
        del self.items[self.index(ticket)]


class Scheduler:
    """Holds requests until a session is idle, then says which go together."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._queued: dict[int, Ticket] = {}
        self._retries: deque[Ticket] = deque()
        self._by_turn = _Order(self._turn_s)
        self._by_length = _Order(lambda ticket: ticket.tokens)
        self._by_deadline = _Order(lambda ticket: ticket.deadline_s or 0.0)

    def __len__(self) -> int:
        """Requests waiting, those to be retried among them."""
        return len(self._queued) + len(self._retries)

    def _turn_s(self, ticket: Ticket) -> float:
        return ticket.arrived_s - ticket.request.priority * self._config.priority_step_s

    def add(self, ticket: Ticket) -> None:
        """Queues a request.

        Raises:
            QueueFullError: As many as allowed are waiting already.
        """
        if len(self) >= self._config.max_queue_size:
            raise QueueFullError
        self._queued[ticket.key] = ticket
        self._by_turn.add(ticket)
        self._by_length.add(ticket)
        if ticket.deadline_s is not None:
            self._by_deadline.add(ticket)

    def retry(self, ticket: Ticket) -> None:
        """Queues a request whose session died, before all others and to run alone.

        It was accepted once, so the bound on the queue does not apply to it; there are never
        more of these than the sessions can hold.
        """
        self._retries.append(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """Takes out a request nobody waits for any more; False if it was not waiting."""
        if ticket.key in self._queued:
            del self._queued[ticket.key]
            self._by_turn.remove(ticket)
            self._by_length.remove(ticket)
            if ticket.deadline_s is not None:
                self._by_deadline.remove(ticket)
            return True
        if ticket in self._retries:
            self._retries.remove(ticket)
            return True
        return False

    def expired(self, now_s: float) -> list[Ticket]:
        """Takes out every request whose deadline has passed."""
        waiting = [ticket for deadline_s, _, ticket in self._expired_items(now_s)]
        waiting += [t for t in self._retries if t.deadline_s is not None and t.deadline_s <= now_s]
        for ticket in waiting:
            self.remove(ticket)
        return waiting

    def _expired_items(self, now_s: float) -> list[tuple[float, int, Ticket]]:
        items = self._by_deadline.items
        return items[: bisect.bisect_right(items, now_s, key=lambda item: item[0])]

    def next_batch(self, now_s: float) -> list[Ticket]:
        """Takes out the requests that an idle session should run now.

        Returns:
            The leader first; empty if nothing waits, or nothing has waited long enough.
        """
        if self._retries:
            return [self._retries.popleft()]
        if not self._queued:
            return []
        leader = self._by_turn.items[0][2]
        batch = self._with_companions(leader)
        if (
            len(batch) < self._config.max_batch_size
            and now_s < leader.arrived_s + self._config.max_queue_delay_s
        ):
            return []
        for ticket in batch:
            self.remove(ticket)
        return batch

    def _with_companions(self, leader: Ticket) -> list[Ticket]:
        """Adds to the leader those nearest in length, while the batch stays within bounds."""
        items = self._by_length.items
        batch, longest = [leader], leader.tokens
        before = self._by_length.index(leader) - 1
        after = before + 2
        while len(batch) < self._config.max_batch_size:
            shorter = items[before][2] if before >= 0 else None
            longer = items[after][2] if after < len(items) else None
            if longer and self._is_nearer(longer, shorter, leader):
                if longer.tokens * (len(batch) + 1) <= self._config.max_batch_tokens:
                    batch.append(longer)
                    longest = longer.tokens
                    after += 1
                else:
                    after = len(items)
            elif shorter and longest * (len(batch) + 1) <= self._config.max_batch_tokens:
                batch.append(shorter)
                before -= 1
            else:
                break
        return batch

    @staticmethod
    def _is_nearer(longer: Ticket, shorter: Ticket | None, leader: Ticket) -> bool:
        return shorter is None or longer.tokens - leader.tokens <= leader.tokens - shorter.tokens

    def next_deadline_s(self) -> float | None:
        """When `expired` next has something, if nothing changes until then."""
        times = [ticket.deadline_s for ticket in self._retries if ticket.deadline_s is not None]
        times += [item[0] for item in self._by_deadline.items[:1]]
        return min(times, default=None)

    def next_departure_s(self) -> float | None:
        """When `next_batch` next has something, if no more requests come."""
        if not self._queued:
            return None
        return self._by_turn.items[0][2].arrived_s + self._config.max_queue_delay_s
