"""The bounded queue of requests and the batches made from it. Sans-IO: it is told the time.

    add ──▶ queued ──next_batch──▶ dispatched ──retry──▶ queued again, to run alone
              ├──expired──▶ answered `deadline_exceeded`
              └──remove───▶ forgotten: its client has gone

Turns are start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996).
Each request has a flow, its client's. Its turn is its virtual start time: the finish of the one
before it in its flow, or the virtual time if that is later; it finishes its cost over its weight
after that. So every flow that has something waiting gets work done in proportion to its weight,
whatever it asks at once, and a request counts by its cost. The virtual time moves on with each
batch by its work over the active flows, as in weighted fair queueing, or to its last turn if that
is later: a stream of new flows cannot hold back an old one. A flow is active until the virtual
time has reached its finish: a client that asks again as soon as it has its answer loses no turn by
that. A batch member that goes before others of its own flow takes the first of their turns, and
they take later ones: a flow's share does not depend on who goes first.

The request whose turn is first always goes. Its batch members are those nearest to it in length
among the oldest few batches' worth of the queue, and only as many as the instance's `BatchRule`
says cost less there than later.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import deque

from qa_service.errors import QueueFullError
from qa_service.scheduling.batch_cost import BatchRule
from qa_service.scheduling.options import QueueOptions
from qa_service.scheduling.pending import PendingRequest

OLDEST_BATCHES = 4
MIN_SWEEP = 64
NO_COST = 1e-6


class _Order:
    """Requests in the order of one of their figures; the lower number goes first among equals."""

    def __init__(self) -> None:
        self.items: list[tuple[float, int, PendingRequest]] = []

    def add(self, figure: float, pending: PendingRequest) -> None:
        bisect.insort(self.items, (figure, pending.number, pending))

    def remove(self, figure: float, pending: PendingRequest) -> None:
        del self.items[bisect.bisect_left(self.items, (figure, pending.number))]


class Scheduler:
    """Holds requests until an instance is idle, then says which go together.

    Attributes:
        waiting_cost: Sum of the costs of what waits for its first run, reserved work included.
    """

    def __init__(self, options: QueueOptions) -> None:
        self.waiting_cost = 0.0
        self._options = options
        self._numbers = itertools.count()
        self._retries: deque[PendingRequest] = deque()
        self._by_turn = _Order()
        self._by_deadline = _Order()
        self._virtual_time = 0.0
        self._finishes: dict[str, float] = {}
        """By active flow, when its last request finishes in virtual time."""
        self._ends: list[tuple[float, str]] = []
        """A heap of the active flows by a finish that each has had; there may be a later one."""
        self._waiting: dict[str, float] = {}

    def __len__(self) -> int:
        """Requests waiting, those to be retried among them."""
        return len(self._by_turn.items) + len(self._retries)

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may."""
        return len(self) >= self._options.max_queue_size

    def add(self, pending: PendingRequest) -> None:
        """Queues a request behind its flow's others.

        Raises:
            QueueFullError: As many as allowed are waiting already, and it was not admitted before
                as part of a longer text.
        """
        if self.is_full and not pending.is_admitted:
            raise QueueFullError
        pending.number = next(self._numbers)
        pending.turn = self.turn_of(pending.flow)
        finish = _finish_of(pending)
        if pending.flow not in self._finishes:
            heapq.heappush(self._ends, (finish, pending.flow))
        self._finishes[pending.flow] = finish
        self.put_back(pending)

    def turn_of(self, flow: str) -> float:
        """The turn that a flow's next request would have."""
        return max(self._virtual_time, self._finishes.get(flow, 0.0))

    def cost_before(self, turn: float) -> float:
        """Sum of the costs of what is queued and goes before a turn."""
        items = self._by_turn.items
        return sum(p.cost for _, _, p in items[: bisect.bisect_right(items, (turn, math.inf))])

    def cost_until_done(self, flow: str, cost: float) -> float:
        """What will have been done when a flow's further work is: shares are equal by then."""
        own = self._waiting.get(flow, 0.0) + cost
        others = (waiting for name, waiting in self._waiting.items() if name != flow)
        return own + sum(min(other, own) for other in others)

    def reserve(self, flow: str, cost: float) -> None:
        """Counts work of a flow that will be queued later; a negative cost takes it back."""
        before = self._waiting.get(flow, 0.0)
        left = before + cost
        if left > NO_COST:
            self._waiting[flow] = left
            self.waiting_cost += cost
        else:
            self._waiting.pop(flow, None)
            self.waiting_cost = self.waiting_cost - before if self._waiting else 0.0

    def put_back(self, pending: PendingRequest) -> None:
        """Queues a request that was queued before, at its old turn; the bound does not apply."""
        pending.is_queued = True
        self.reserve(pending.flow, pending.cost)
        self._by_turn.add(pending.turn, pending)
        if pending.deadline_s < math.inf:
            self._by_deadline.add(pending.deadline_s, pending)

    def retry(self, pending: PendingRequest) -> None:
        """Queues a request whose instance died, before all others and to run alone.

        It was accepted once, so the bound on the queue does not apply to it; there are never
        more of these than the instances can hold.
        """
        self._retries.append(pending)

    def remove(self, pending: PendingRequest) -> bool:
        """Takes out a request nobody waits for any more; False if it was not waiting."""
        if pending.is_queued:
            self._take_out(pending)
            self._give_back_turn(pending)
            return True
        if pending in self._retries:
            self._retries.remove(pending)
            return True
        return False

    def _take_out(self, pending: PendingRequest) -> None:
        pending.is_queued = False
        self._by_turn.remove(pending.turn, pending)
        self.reserve(pending.flow, -pending.cost)
        if pending.deadline_s < math.inf:
            self._by_deadline.remove(pending.deadline_s, pending)

    def expired(self, now_s: float) -> list[PendingRequest]:
        """Takes out every request whose deadline has passed."""
        items = self._by_deadline.items
        late = [item[2] for item in items[: bisect.bisect_right(items, (now_s, math.inf))]]
        late += [pending for pending in self._retries if pending.deadline_s <= now_s]
        for pending in late:
            self.remove(pending)
        return late

    def next_batch(
        self, now_s: float, rule: BatchRule, *, is_idle: bool = True, num_instances: int = 1
    ) -> list[PendingRequest]:
        """Takes out the requests that an instance should have now.

        Args:
            now_s: The time.
            rule: What the instance can run together.
            is_idle: Whether it has nothing else. What is to be retried has an instance to itself.
            num_instances: How many share the queue.

        Returns:
            The leader first; empty if nothing waits, or nothing has waited long enough.
        """
        if self._retries and is_idle:
            return [self._retries.popleft()]
        if not self._by_turn.items:
            return []
        leader = self._by_turn.items[0][2]
        num_waiting = len(self._by_turn.items) / num_instances
        batch = self._with_members(leader, rule, num_waiting)
        if now_s < leader.arrived_s + self._options.max_queue_delay_s and (
            rule.admits(len(batch), leader.tokens, leader.tokens)
        ):
            return []
        self._take_turns_of_those_passed(batch)
        served = sum([pending.cost / pending.weight for pending in batch])
        self._advance(max(self._virtual_time, leader.turn))
        work = served / max(1, len(self._finishes))
        self._advance(max([self._virtual_time + work, *[pending.turn for pending in batch]]))
        for pending in batch:
            self._take_out(pending)
        if not self._by_turn.items:  # whoever comes next finds all flows equal
            self._advance(max(self._finishes.values(), default=self._virtual_time))
        return batch

    def _take_turns_of_those_passed(self, batch: list[PendingRequest]) -> None:
        """Gives the members of a batch the first turns of their flows; who had them, later ones."""
        members = set(batch)
        lines: dict[str, list[PendingRequest]] = {}
        last = max((pending.turn, pending.number + 1) for pending in batch)
        items = self._by_turn.items
        for _, _, pending in reversed(items[: bisect.bisect_left(items, last)]):
            if pending in members or pending.flow in lines:
                lines.setdefault(pending.flow, []).append(pending)
        for line in lines.values():
            if len(line) == 1:
                continue
            turn = line[-1].turn
            for pending in sorted(line, key=lambda p: (p not in members, p.turn, p.number)):
                if pending.turn != turn:
                    self._by_turn.remove(pending.turn, pending)
                    pending.turn = turn
                    self._by_turn.add(turn, pending)
                turn += pending.cost / pending.weight

    def _advance(self, virtual_time: float) -> None:
        """Moves the virtual time on, and forgets the flows that are not active any more."""
        self._virtual_time = virtual_time
        while self._ends and self._ends[0][0] <= virtual_time:
            _, flow = heapq.heappop(self._ends)
            finish = self._finishes.get(flow, 0.0)
            if finish > virtual_time:
                heapq.heappush(self._ends, (finish, flow))
            else:
                self._finishes.pop(flow, None)

    def _give_back_turn(self, pending: PendingRequest) -> None:
        """What was never run does not count as its flow's, if nothing has come behind it."""
        flow = pending.flow
        if self._finishes.get(flow) == _finish_of(pending):
            self._finishes[flow] = pending.turn
            if pending.turn <= self._virtual_time:
                del self._finishes[flow]
        if len(self._ends) > MIN_SWEEP + 2 * len(self._finishes):
            self._ends = [(finish, flow) for flow, finish in self._finishes.items()]
            heapq.heapify(self._ends)

    def _with_members(
        self, leader: PendingRequest, rule: BatchRule, num_waiting: float
    ) -> list[PendingRequest]:
        """Adds to the leader those nearest in length, on either side up to the first refused."""
        if len(self._by_turn.items) == 1:
            return [leader]
        if not rule.admits(1, leader.tokens, leader.tokens, num_waiting):
            return [leader]  # if its like would not pay, nothing does
        oldest = self._by_turn.items[1 : OLDEST_BATCHES * rule.max_batch_size]
        others = sorted((pending for _, _, pending in oldest), key=lambda p: (p.tokens, p.number))
        batch, longest = [leader], leader.tokens
        after = bisect.bisect_left(others, leader.tokens, key=lambda p: p.tokens)
        before = after - 1
        while before >= 0 or after < len(others):
            shorter = others[before] if before >= 0 else None
            longer = others[after] if after < len(others) else None
            if longer and _is_nearer(longer, shorter, leader):
                if rule.admits(len(batch), longest, longer.tokens, num_waiting):
                    batch.append(longer)
                    longest = longer.tokens
                    after += 1
                else:
                    after = len(others)
            elif shorter and rule.admits(len(batch), longest, shorter.tokens, num_waiting):
                batch.append(shorter)
                before -= 1
            else:
                break
        return batch

    def next_deadline_s(self) -> float:
        """When `expired` next has something, if nothing changes until then."""
        times_s = [pending.deadline_s for pending in self._retries]
        times_s += [item[0] for item in self._by_deadline.items[:1]]
        return min(times_s, default=math.inf)

    def next_departure_s(self) -> float | None:
        """When `next_batch` next has something, if no more requests come."""
        if not self._by_turn.items:
            return None
        return self._by_turn.items[0][2].arrived_s + self._options.max_queue_delay_s


def _finish_of(pending: PendingRequest) -> float:
    return pending.turn + pending.cost / pending.weight


def _is_nearer(
    longer: PendingRequest, shorter: PendingRequest | None, leader: PendingRequest
) -> bool:
    return shorter is None or longer.tokens - leader.tokens <= leader.tokens - shorter.tokens
