"""The bounded queue of requests, and the batches made from it. Sans-IO.

    add ──▶ queued ──next_batch──▶ dispatched ──retry──▶ queued again, to run alone
              ├──expired──▶ answered `deadline_exceeded`
              └──remove───▶ dropped: its client has disconnected

`Flows` says whose turn it is. The request with the first turn, the leader, always goes. Its batch
members are the requests nearest to it in length whose turn starts before the leader's ends, or
while a fair machine would run the batch: so batches change no flow's share. They join as long as
the instance's `BatchRule` says that they cost less in this batch than later.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.instance.batch_cost import BatchRule
from qa_service.options import Count
from qa_service.server.scheduling.flows import Flows, Turn, insert
from qa_service.server.scheduling.ticket import Ticket

BATCHES_AHEAD = 3
"""Batch members come from as many turns as fill this many batches of the leader's length: enough to
find texts of that length. Whoever is passed waits longer, so p99 grows with this number; with 3 it
is within 1.1 of first come, first served (`test_shares.py`)."""


class QueueOptions(Struct, frozen=True, kw_only=True):
    """The queue of requests that wait for an instance."""

    max_queue_size: Annotated[
        Count,
        Meta(
            description="maximum number of requests that wait for an instance; also of those that "
            "wait for a search process, and with a cache of those that wait for an equal request"
        ),
    ] = 1000
    max_queue_delay_us: Annotated[
        int,
        Meta(ge=0, le=1_000_000,
             description="microseconds a request may wait for batch members while an instance is "
             "idle"),
    ] = 0  # fmt: skip


class Scheduler:
    """Holds requests until an instance takes a batch of them.

    Attributes:
        flows: The requests that wait for their first run, and what they cost.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._max_size = options.max_queue_size
        self._max_delay_s = options.max_queue_delay_us / 1e6
        self._numbers = itertools.count()
        self._retries: deque[Ticket] = deque()
        self.flows = Flows()
        self._deadlines: list[tuple[float, int, Ticket]] = []

    def __len__(self) -> int:
        """Requests waiting, retries included."""
        return self.flows.size + len(self._retries)

    def is_full(self) -> bool:
        return self.flows.size + len(self._retries) >= self._max_size

    def add(self, ticket: Ticket) -> None:
        """Queues an admitted request, or a segment of one, in its flow's line."""
        ticket.number = next(self._numbers)
        self.flows.add(ticket)
        self._note_deadline(ticket)

    def begin(self, text: Ticket) -> None:
        text.number = next(self._numbers)
        self.flows.begin(text)

    def put_back(self, ticket: Ticket) -> None:
        """Queues an accepted request again, at its old turn; the bound does not apply."""
        self.flows.put_back(ticket)
        self._note_deadline(ticket)

    def _note_deadline(self, ticket: Ticket) -> None:
        ticket.is_queued = True
        if ticket.deadline_s < math.inf:
            insert(self._deadlines, (ticket.deadline_s, ticket.number, ticket))

    def _forget_deadline(self, ticket: Ticket) -> None:
        ticket.is_queued = False
        if ticket.deadline_s < math.inf:
            place = bisect.bisect_left(self._deadlines, (ticket.deadline_s, ticket.number))
            del self._deadlines[place]

    def retry(self, ticket: Ticket) -> None:
        """Queues a request whose instance died, before all others and to run alone.

        The queue's bound does not apply: instances hold a bounded number of requests.
        """
        self._retries.append(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """Removes a request whose client has disconnected; False if it was not waiting."""
        if ticket.is_queued:
            self._forget_deadline(ticket)
            self.flows.remove(ticket)
            return True
        if ticket in self._retries:
            self._retries.remove(ticket)
            return True
        return False

    def expired(self, now_s: float) -> list[Ticket]:
        items = self._deadlines
        late = [item[2] for item in items[: bisect.bisect_right(items, (now_s, math.inf))]]
        late += [ticket for ticket in self._retries if ticket.deadline_s <= now_s]
        for ticket in late:
            self.remove(ticket)
        return late

    def next_batch(
        self, now_s: float, rule: BatchRule, *, is_idle: bool = True, num_instances: int = 1
    ) -> list[Ticket]:
        """Removes and returns the requests that an instance should run now.

        Args:
            is_idle: Whether the instance holds no batch; only then it may get a retry.

        Returns:
            The leader first; empty if no request waits, or none has waited long enough.
        """
        if self._retries and is_idle:
            return [self._retries.popleft()]
        self.flows.num_instances = num_instances
        turns = self.flows.turns()
        if (leader := next(turns, None)) is None:
            return []
        batch = [leader]
        if self.flows.size > 1:
            batch = self._with_members(leader, turns, rule, self.flows.size / num_instances)
        if now_s < leader.ticket.arrived_s + self._max_delay_s and (
            rule.admits(len(batch), leader.ticket.tokens, leader.ticket.tokens)
        ):
            return []
        self.flows.take(batch)
        for turn in batch:
            self._forget_deadline(turn.ticket)
        return [turn.ticket for turn in batch]

    def _with_members(
        self, leader: Turn, turns: Iterator[Turn], rule: BatchRule, num_waiting: float
    ) -> list[Turn]:
        """Adds requests nearest to the leader in length, on either side until one is refused."""
        tokens = leader.ticket.tokens
        if not rule.admits(1, tokens, tokens, num_waiting):
            return [leader]  # if an equally long request would not pay, no request does
        others = sorted(self._candidates(leader, turns, rule))
        batch, longest = [leader], tokens
        after = bisect.bisect_left(others, (tokens,))
        before = after - 1
        while before >= 0 or after < len(others):
            shorter = others[before] if before >= 0 else None
            longer = others[after] if after < len(others) else None
            if longer and (shorter is None or longer[0] - tokens <= tokens - shorter[0]):
                if rule.admits(len(batch), longest, longer[0], num_waiting):
                    batch.append(longer[2])
                    longest = longer[0]
                    after += 1
                else:
                    after = len(others)
            elif shorter and rule.admits(len(batch), longest, shorter[0], num_waiting):
                batch.append(shorter[2])
                before -= 1
            else:
                break
        return batch

    def _candidates(
        self, leader: Turn, turns: Iterator[Turn], rule: BatchRule
    ) -> list[tuple[int, int, Turn]]:
        """The requests that may join the leader's batch without a change in any flow's share.

        Their turns start before the leader's ends, or while a fair machine would run the batch.
        The leader's turn counts as longer where a batch does more rows in that time.

        Returns:
            For each its tokens, its number and its turn.
        """
        work, weight = leader.ticket.turn_cost, self.flows.weight
        within = leader.start + (leader.end - leader.start) * rule.gain(leader.ticket.tokens)
        ahead = BATCHES_AHEAD * rule.rows(leader.ticket.tokens, self.flows.size)
        found = []
        for turn in itertools.islice(turns, ahead - 1):
            work += turn.ticket.turn_cost
            if turn.start > within and turn.start > leader.start + work / weight:
                break
            found.append((turn.ticket.tokens, turn.ticket.number, turn))
        return found

    def next_deadline_s(self) -> float:
        """When the next request expires; infinity for never."""
        first_s = self._deadlines[0][0] if self._deadlines else math.inf
        if not self._retries:
            return first_s
        return min([first_s, *[ticket.deadline_s for ticket in self._retries]])

    def next_departure_s(self) -> float | None:
        """When `next_batch` returns a batch if no more requests come; None if none waits."""
        if (leader := next(self.flows.turns(), None)) is None:
            return None
        return leader.ticket.arrived_s + self._max_delay_s
