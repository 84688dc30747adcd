"""The bounded queue of requests and the batches made from it. Sans-IO: it is told the time.

    add ──▶ queued ──next_batch──▶ dispatched ──retry──▶ queued again, to run alone
              ├──expired──▶ answered `deadline_exceeded`
              └──remove───▶ forgotten: its client has gone

The request whose turn is oldest leads each batch; its companions are those nearest to it in
length, so that little padding is computed, and only as many as the session's `BatchRule` says
are cheaper together than apart. A request's turn is its arrival, moved forward by
`priority_step_s` for each step of priority: a higher priority overtakes, but only what arrived
less than nine steps before it, so every request's turn comes.

A text of many windows goes alone, to a session that has none yet and runs it between others; the
short questions behind it do not wait for such a session.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from qa_service.batching import BatchRule
from qa_service.errors import QaError, QueueFullError
from qa_service.protocol import Answer, Request, Timings

BATCH_BY = ("length", "arrival")
SAMPLE_CHARS = 4096


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
        deadline_s: When it expires if no session has taken it; infinity for never.
        tokens: About how many tokens it will be.
        is_long: Whether it will be more than one window.
        attempts: How many sessions have died running it.
    """

    key: int
    request: Request
    owner: TicketOwner
    arrived_s: float
    deadline_s: float
    tokens: int
    is_long: bool = False
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds on the queue, and its order.

    Attributes:
        max_queue_size: Requests that may wait.
        max_queue_delay_s: How long a request may wait for companions while a session is idle.
        priority_step_s: How much earlier a step of priority makes a request's turn.
        batch_by: Whether companions are the nearest in `length` or the next by `arrival`.
    """

    max_queue_size: int
    max_queue_delay_s: float = 0.0
    priority_step_s: float = 0.1
    batch_by: str = "length"


def estimate_tokens(request: Request) -> int:
    """Guesses how many tokens a request will be.

    English has about four bytes of UTF-8 to a token of BERT's vocabularies, Chinese and Japanese
    three, which is one character.
    """
    return 3 + (_utf8_bytes(request.question) + _utf8_bytes(request.text)) // 4


def _utf8_bytes(text: str) -> int:
    """How long its UTF-8 is; of a long text that is not ASCII, guessed from a sample of it."""
    if text.isascii():
        return len(text)
    step = 1 + len(text) // SAMPLE_CHARS
    return step * len(text[::step].encode())


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
        self._long_by_turn = _Order(self._turn_s)
        self._by_length = _Order(lambda ticket: ticket.tokens)
        self._by_deadline = _Order(lambda ticket: ticket.deadline_s)

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
        self.put_back(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """Queues a request that was accepted once, at its old turn: the bound holds no more."""
        self._queued[ticket.key] = ticket
        for order in self._orders_of(ticket):
            order.add(ticket)

    def _orders_of(self, ticket: Ticket) -> Iterator[_Order]:
        """Where the ticket stands while it is queued."""
        if ticket.is_long:
            yield self._long_by_turn
        else:
            yield self._by_turn
            yield self._by_length
        if ticket.deadline_s < math.inf:
            yield self._by_deadline

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
            for order in self._orders_of(ticket):
                order.remove(ticket)
            return True
        if ticket in self._retries:
            self._retries.remove(ticket)
            return True
        return False

    def expired(self, now_s: float) -> list[Ticket]:
        """Takes out every request whose deadline has passed."""
        waiting = [ticket for deadline_s, _, ticket in self._expired_items(now_s)]
        waiting += [ticket for ticket in self._retries if ticket.deadline_s <= now_s]
        for ticket in waiting:
            self.remove(ticket)
        return waiting

    def _expired_items(self, now_s: float) -> list[tuple[float, int, Ticket]]:
        items = self._by_deadline.items
        return items[: bisect.bisect_right(items, now_s, key=lambda item: item[0])]

    def next_batch(
        self, now_s: float, rule: BatchRule, *, is_idle: bool = True, takes_long: bool = True
    ) -> list[Ticket]:
        """Takes out the requests that a session should have now.

        Args:
            now_s: The time.
            rule: What the session can run together.
            is_idle: Whether it has nothing else. What is to be retried has a session to itself,
                and while any is, no session is given work in advance.
            takes_long: Whether it may be given a text of many windows.

        Returns:
            The leader first; empty if nothing waits, or nothing has waited long enough.
        """
        if self._retries:
            return [self._retries.popleft()] if is_idle else []
        leader = self._leader(takes_long)
        if leader is None:
            return []
        batch = [leader] if leader.is_long else self._with_companions(leader, rule)
        if now_s < leader.arrived_s + self._config.max_queue_delay_s and (
            not leader.is_long and rule.admits(len(batch), leader.tokens, leader.tokens)
        ):
            return []
        for ticket in batch:
            self.remove(ticket)
        return batch

    def _leader(self, takes_long: bool) -> Ticket | None:
        """The oldest by turn of those that may go."""
        orders = (self._by_turn, self._long_by_turn) if takes_long else (self._by_turn,)
        heads = [order.items[0] for order in orders if order.items]
        return min(heads)[2] if heads else None

    def _with_companions(self, leader: Ticket, rule: BatchRule) -> list[Ticket]:
        """Adds to the leader those that the rule admits."""
        if not rule.admits(1, leader.tokens, leader.tokens):
            return [leader]  # if its like would not pay, nothing does
        by_length = self._config.batch_by == "length"
        return self._with_nearest(leader, rule) if by_length else self._with_next(leader, rule)

    def _with_next(self, leader: Ticket, rule: BatchRule) -> list[Ticket]:
        """Adds those whose turns come next, up to the first that is not admitted."""
        batch, longest = [leader], leader.tokens
        for _, _, ticket in itertools.islice(self._by_turn.items, 1, None):
            if not rule.admits(len(batch), longest, ticket.tokens):
                break
            batch.append(ticket)
            longest = max(longest, ticket.tokens)
        return batch

    def _with_nearest(self, leader: Ticket, rule: BatchRule) -> list[Ticket]:
        """Adds those nearest in length, on either side up to the first that is not admitted."""
        items = self._by_length.items
        batch, longest = [leader], leader.tokens
        before = self._by_length.index(leader) - 1
        after = before + 2
        while before >= 0 or after < len(items):
            shorter = items[before][2] if before >= 0 else None
            longer = items[after][2] if after < len(items) else None
            if longer and self._is_nearer(longer, shorter, leader):
                if rule.admits(len(batch), longest, longer.tokens):
                    batch.append(longer)
                    longest = longer.tokens
                    after += 1
                else:
                    after = len(items)
            elif shorter and rule.admits(len(batch), longest, shorter.tokens):
                batch.append(shorter)
                before -= 1
            else:
                break
        return batch

    @staticmethod
    def _is_nearer(longer: Ticket, shorter: Ticket | None, leader: Ticket) -> bool:
        return shorter is None or longer.tokens - leader.tokens <= leader.tokens - shorter.tokens

    def next_deadline_s(self) -> float:
        """When `expired` next has something, if nothing changes until then."""
        times_s = [ticket.deadline_s for ticket in self._retries]
        times_s += [item[0] for item in self._by_deadline.items[:1]]
        return min(times_s, default=math.inf)

    def next_departure_s(self) -> float | None:
        """When `next_batch` next has something, if no more requests come."""
        leader = self._leader(takes_long=False)
        return leader.arrived_s + self._config.max_queue_delay_s if leader else None
