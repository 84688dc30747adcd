"""Whose turn it is: start-time fair queueing over flows. Sans-IO.

    flow a  |--a1--|--a2--|--a3--|           each flow has a line in virtual time, where a turn
    flow b  |---b1----|---b2----|            is as long as its cost over its weight
    turns   a1 b1 a2 b2 a3                   the earliest start goes first

A flow pays when its request is taken: its next turn starts that much later (Goyal, Vin, Cheng:
"Start-time Fair Queueing", SIGCOMM 1996). So each flow that has something waiting gets work done in
proportion to its weight, whatever it asks at once. Within a flow, a request of more weight, which
is one of higher priority, goes first; then the one that came first.

The virtual time moves on with each batch by its work over the weights of the flows present. A flow
is present while it has something waiting, and for a few batches more: as long as its client may be
about to ask again. A client that comes starts at the virtual time: it has saved nothing up.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from qa_service.scheduling.pending import PendingRequest

LINGER_BATCHES = 2
"""A flow stays present for so many batches of each instance: as many as one holds."""

NO_COST = 1e-6

_Place = tuple[float, int, str]
"""Of a flow among the others: when its turn starts, the number of its first request, its name."""


class Turn(NamedTuple):
    """A request in its place.

    Attributes:
        start: When its turn starts, in virtual time.
        pending: The request.
    """

    start: float
    pending: PendingRequest

    @property
    def work(self) -> float:
        """What its flow pays for it."""
        return max(self.pending.cost, self.pending.turn_cost)

    @property
    def end(self) -> float:
        """When its turn ends, in virtual time."""
        return self.start + self.work / self.pending.weight


class Flow:
    """One client's line.

    Attributes:
        name: Its name.
        line: What waits, in its order.
        weight: Its share, relative to others': that of its first request.
        start: When its next turn starts, in virtual time.
        waiting: The cost of what waits.
        reserved: The cost of what will be queued later: the rest of its long texts.
        last_batch: The number of the last batch that had something of it; -infinity for none.
    """

    __slots__ = ("last_batch", "line", "name", "reserved", "start", "waiting", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.line: list[tuple[float, int, PendingRequest]] = []
        self.weight = self.start = self.waiting = self.reserved = 0.0
        self.last_batch = -math.inf

    @property
    def cost(self) -> float:
        """The cost of all that is left to do for it."""
        return self.waiting + self.reserved

    @property
    def place(self) -> _Place:
        """Where it stands among the flows that have something waiting."""
        return self.start, self.line[0][1], self.name

    def insert(self, pending: PendingRequest) -> None:
        """Puts a request into its place in the line."""
        bisect.insort(self.line, (-pending.weight, pending.number, pending))
        self.weight = -self.line[0][0]
        self.waiting += pending.cost

    def remove(self, pending: PendingRequest) -> None:
        """Takes a request out of the line."""
        del self.line[bisect.bisect_left(self.line, (-pending.weight, pending.number))]
        self.weight = -self.line[0][0] if self.line else self.weight
        self.waiting = self.waiting - pending.cost if self.line else 0.0

    def is_present(self, since_batch: float) -> bool:
        """Whether something of it waits, or was in a batch since that one."""
        return bool(self.line) or self.reserved > 0.0 or self.last_batch > since_batch


class Flows:
    """All clients' lines, and the virtual time.

    Attributes:
        size: How many requests wait.
        cost: The cost of what waits, and of what is reserved.
        num_instances: How many share the work.
    """

    def __init__(self) -> None:
        self.size = 0
        self.cost = 0.0
        self.num_instances = 1
        self._flows: dict[str, Flow] = {}
        self._places: list[_Place] = []
        self._virtual_time = 0.0
        self._num_batches = 0

    def __len__(self) -> int:
        """Flows that are known."""
        return len(self._flows)

    @property
    def weight(self) -> float:
        """The weights of the flows that are present."""
        return sum([flow.weight for flow in self._present()])

    def add(self, pending: PendingRequest) -> None:
        """Puts a request into its flow's line."""
        flow = self._known(pending.flow)
        if not flow.line:
            flow.start = max(flow.start, self._virtual_time)
        self._change(flow, pending, flow.insert)

    def put_back(self, pending: PendingRequest) -> None:
        """Puts a request back that was taken and did not run: its flow gets back what it paid."""
        flow = self._known(pending.flow)
        self._change(flow, pending, flow.insert, pays=-1)

    def remove(self, pending: PendingRequest) -> None:
        """Takes out a request that will not run: its flow pays nothing."""
        flow = self._flows[pending.flow]
        self._change(flow, pending, flow.remove)
        self._forget([flow])

    def reserve(self, pending: PendingRequest, cost: float) -> None:
        """Counts a cost of what will be queued later of a request; a negative one takes it back."""
        flow = self._known(pending.flow)
        flow.weight = flow.weight or pending.weight
        before = flow.reserved
        flow.reserved = before + cost if before + cost > NO_COST else 0.0
        self.cost += flow.reserved - before
        self._forget([flow])

    def take(self, turns: Sequence[Turn]) -> None:
        """Takes requests out to run together, the first turn first: their flows pay."""
        work = sum([turn.work for turn in turns])
        self._virtual_time = max(self._virtual_time, turns[0].start) + work / self.weight
        self._num_batches += 1
        for turn in turns:
            flow = self._flows[turn.pending.flow]
            flow.last_batch = self._num_batches
            self._change(flow, turn.pending, flow.remove, pays=1)
        if not self.size:  # whoever comes next finds all flows equal
            for flow in self._flows.values():
                flow.start, flow.last_batch = self._virtual_time, -math.inf
        self._forget(list(self._flows.values()))

    def first(self) -> Turn | None:
        """The first turn; None if nothing waits."""
        return next(self.turns(), None)

    def turns(self) -> Iterator[Turn]:
        """What waits, in the order of its turns."""
        places: list[tuple[_Place, int]] = []
        for place in self._places:
            while places and places[0][0] < place:
                yield self._next_of(places)
            heapq.heappush(places, (place, 0))
        while places:
            yield self._next_of(places)

    def _next_of(self, places: list[tuple[_Place, int]]) -> Turn:
        """The first of some places' turns; the request behind it in its line takes its place."""
        (start, _, name), index = places[0]
        line = self._flows[name].line
        turn = Turn(start, line[index][2])
        if index + 1 < len(line):
            heapq.heapreplace(places, ((turn.end, line[index + 1][1], name), index + 1))
        else:
            heapq.heappop(places)
        return turn

    def cost_before(self, pending: PendingRequest) -> float:
        """The cost of what would go before a request that is not queued yet."""
        flow = self._flows.get(pending.flow) or Flow(pending.flow)
        ahead = [other for weight, _, other in flow.line if -weight >= pending.weight]
        start = max(flow.start, self._virtual_time)
        for other in ahead:
            start = Turn(start, other).end
        others = (other for other in self._flows.values() if other is not flow and other.line)
        return sum(other.cost for other in ahead) + sum(
            min(other.waiting, other.line[0][2].cost + (start - other.start) * other.weight)
            for other in others
            if other.start <= start
        )

    def cost_until_done(self, pending: PendingRequest) -> float:
        """The cost of what will have been done when a text is that is yet to be reserved.

        Clients that have short requests waiting are taken to go on asking; of the long texts of
        others it is known what is left.
        """
        flow = self._flows.get(pending.flow) or Flow(pending.flow)
        own = flow.cost + pending.cost
        share = own / pending.weight
        others = (other for other in self._present() if other is not flow)
        return own + sum(
            min(share * other.weight, other.cost if other.reserved else math.inf)
            for other in others
        )

    def _known(self, name: str) -> Flow:
        if name not in self._flows:
            flow = self._flows[name] = Flow(name)
            flow.start = self._virtual_time
        return self._flows[name]

    def _present(self) -> list[Flow]:
        since_batch = self._since_batch
        return [flow for flow in self._flows.values() if flow.is_present(since_batch)]

    @property
    def _since_batch(self) -> int:
        return self._num_batches - LINGER_BATCHES * self.num_instances

    def _change(
        self,
        flow: Flow,
        pending: PendingRequest,
        change: Callable[[PendingRequest], None],
        *,
        pays: int = 0,
    ) -> None:
        """Inserts or removes a request, and moves its flow to its place among the others."""
        if flow.line:
            del self._places[bisect.bisect_left(self._places, flow.place)]
        self.size -= len(flow.line)
        self.cost -= flow.cost
        change(pending)
        self.size += len(flow.line)
        self.cost += flow.cost
        flow.start += pays * Turn(0.0, pending).end
        if flow.line:
            bisect.insort(self._places, flow.place)

    def _forget(self, flows: Sequence[Flow]) -> None:
        """Drops those flows that are not present, and have not paid for later turns already."""
        since_batch = self._since_batch
        for flow in flows:
            if not flow.is_present(since_batch) and flow.start <= self._virtual_time:
                del self._flows[flow.name]
        if not self._flows:
            self.cost = 0.0  # but for what rounding has left
