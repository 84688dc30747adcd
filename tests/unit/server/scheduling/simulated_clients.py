"""Clients that always have this many requests in flight, before the real scheduler, simulated.

An instance takes what its cost table says. As a worker does, it holds a second batch from the
middle of its first one on.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from qa_service.instance.batch_cost import MIN_TURN_TOKENS, BatchRule, CostTable
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from qa_service.server.scheduling.ticket import Ticket
from tests.unit.calls import make_ticket

WINDOW_TOKENS = 384


def table_of(fixed_ms: float, row_ms: float) -> CostTable:
    """A batch of rows of 100 tokens costs so much once, and so much a row."""
    sizes = (1, 64)
    rows = [tuple((fixed_ms + row_ms * n) * t / 100 for n in sizes) for t in (16, 384)]
    return CostTable((16, WINDOW_TOKENS), sizes, tuple(rows))


CORE = table_of(2.0, 8.0)
"""A processor's core: a batch of eight saves a sixth."""


@dataclass
class Client:
    """One flow: how much it has in flight, its weights and lengths in turn."""

    name: str
    in_flight: int = 60
    weights: Sequence[float] = (1.0,)
    lengths: Sequence[int] = (100,)


@dataclass
class Machine:
    """Runs clients' requests; counts what is done for each.

    Attributes:
        answered: Requests of each client that were answered.
        work: What its turns have cost.
        waited_ms: How long each of a client's requests took.
    """

    clients: Sequence[Client]
    costs: CostTable = CORE
    num_instances: int = 2
    max_batch_size: int = 64
    seed: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waited_ms: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now_ms, self.num_batches = 0.0, 0
        self.rule = BatchRule(self.max_batch_size, 16384, costs=self.costs)
        self.scheduler = Scheduler(QueueOptions(max_queue_size=100_000))
        self._tie = itertools.count()
        self._middle_ms = [0.0] * self.num_instances
        self._held: list[list[list[Ticket]]] = [[] for _ in range(self.num_instances)]
        self._events: list[tuple[float, int, int, list[Ticket] | None]] = []
        self._weights = {c.name: itertools.cycle(c.weights) for c in self.clients}
        for client in self.clients:
            self.waited_ms[client.name] = []
            for _ in range(client.in_flight):
                self._ask(client)

    def _ask(self, client: Client) -> None:
        tokens = self.rng.choice(client.lengths)
        cost, min_turn_cost = (self.costs.cost_ms(1, n) for n in (tokens, MIN_TURN_TOKENS))
        ticket = make_ticket(
            self.now_ms, tokens=tokens, flow=client.name, cost=cost,
            turn_cost=max(cost, min_turn_cost), min_turn_cost=min_turn_cost,
            weight=next(self._weights[client.name]),
        )  # fmt: skip
        self.scheduler.add(ticket)

    def run(self, num_answers: int, *, skip: int = 0) -> Machine:
        """Runs until this many requests are answered, and does not count the first few."""
        if skip:
            self.run(skip)
            self.num_batches = 0
            self.answered.clear()
            self.work.clear()
        by_name = {client.name: client for client in self.clients}
        while self.answered.total() < num_answers:
            for instance in range(self.num_instances):
                self._fill(instance)
            self.now_ms, _, instance, batch = heapq.heappop(self._events)
            if batch is None:
                continue
            self._held[instance].remove(batch)
            self.num_batches += 1
            if self._held[instance]:
                self._start(instance)
            for ticket in batch:
                self.answered[ticket.flow] += 1
                self.work[ticket.flow] += ticket.turn_cost
                self.waited_ms[ticket.flow].append(self.now_ms - ticket.arrived_s)
                self._ask(by_name[ticket.flow])
        return self

    def _fill(self, instance: int) -> None:
        held = self._held[instance]
        if len(held) == 2 or (held and self.now_ms < self._middle_ms[instance]):
            return
        batch = self.scheduler.next_batch(
            self.now_ms, self.rule, is_idle=not held, num_instances=self.num_instances
        )
        if batch:
            held.append(batch)
            if len(held) == 1:
                self._start(instance)

    def _start(self, instance: int) -> None:
        batch = self._held[instance][0]
        took_ms = self.costs.cost_ms(len(batch), max(ticket.tokens for ticket in batch))
        self._middle_ms[instance] = self.now_ms + took_ms / 2
        for at_ms, what in ((self._middle_ms[instance], None), (self.now_ms + took_ms, batch)):
            heapq.heappush(self._events, (at_ms, next(self._tie), instance, what))
