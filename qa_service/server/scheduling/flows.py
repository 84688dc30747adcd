"""Whose turn it is: start-time fair queueing over flows. Sans-IO.

    flow a  |--a1--|--a2--|--a3--|           each flow has a line in virtual time, where a turn's
    flow b  |---b1----|---b2----|            length is its cost over its weight
    turns   a1 b1 a2 b2 a3                   the earliest start goes first

A flow pays when its request is taken: its next turn starts that much later (Goyal, Vin, Cheng:
"Start-time Fair Queueing", SIGCOMM 1996). So each flow with waiting requests gets work done in
proportion to its weight, however many it sends. Within a flow, a request of more weight (a higher
priority) goes first, then the oldest.

A flow that asks while nothing of it waits has its turn one minimum turn after the virtual time. So
of clients that ask one question at a time, equal ones are served in the order in which they ask,
and one of more weight, whose turns are shorter, before them. What such a flow has paid ahead, since
it was a batch member before its turn or asked for more than a page, delays it from two minimum
turns on. (Without this allowance, whoever was served early in one round waited longer in the next.)

Long texts are read one after another, not side by side: every turn of a flow's long text is used
for the text that a fair machine would finish first. A flow keeps such turns until it has paid for
its own texts (E. Friedman, S. Henderson: "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). So no text is done later than if all shared the time, and most are done much
earlier; if there is too little time for all, some are done. Short requests are not affected.

Each batch advances the virtual time by its work over the weights of the flows present. A flow is
present while it has requests waiting, and for a few batches more, in which its client may ask
again. A new flow starts at the virtual time: it has no credit.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from qa_service.server.scheduling.ticket import Ticket

LINGER_BATCHES = 2
"""A flow stays present for this many batches of each instance: as many as an instance holds."""

NO_COST = 1e-6
"""Below this a sum of costs is a rounding error: costs are far larger."""

_SortKey = tuple[float, float, str]
"""Sorts the flows: when the flow's turn starts, the number of its first request, its name."""

_Further = tuple[_SortKey, int]
"""A later place of a flow, and the index of the request in its line."""

_Segment = tuple[tuple[float, int], int, Ticket]
_InLine = tuple[float, tuple[float, int], int, Ticket]


Item = TypeVar("Item", bound=tuple[Any, ...])


class Turn(msgspec.Struct, frozen=True):
    """A request's turn, in virtual time.

    Attributes:
        flow: The flow that pays; for a segment of a long text, it may not be the ticket's.
    """

    start: float
    end: float
    ticket: Ticket
    flow: Flow


class Flow:
    """One client's line. Times are virtual.

    Attributes:
        line: Its waiting requests, in their order.
        weight: That of its first request.
        paid: Where the turns that it has had end; it is not behind the virtual time when it asks.
        finish: When a fair machine would finish its short requests.
        texts_finish: When a fair machine would finish its long texts; until then it has turns, in
            which other flows' texts may be read. -infinity without texts.
        reserved: The cost of the segments of its long texts that are not queued yet.
        last_batch: The number of the last batch with a request or a turn of it; -infinity for none.
        sort_key: Its place among the flows; None if it has no turn.
        active_weight: Its part in the sum of the weights.
    """

    __slots__ = (
        "active_weight", "finish", "last_batch", "line", "name", "paid", "reserved", "sort_key",
        "start", "texts_finish", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.line: list[_InLine] = []
        self.weight = self.active_weight = self.waiting = self.reserved = 0.0
        self.finish = 0.0
        self.texts_finish = -math.inf
        self.start = self.paid = start
        self.last_batch = -math.inf
        self.sort_key: _SortKey | None = None

    @property
    def cost(self) -> float:
        return self.waiting + self.reserved

    def insert(self, ticket: Ticket) -> None:
        insert(self.line, _in_line(ticket))
        self.weight = -self.line[0][0]
        self.waiting += ticket.cost

    def remove(self, ticket: Ticket) -> None:
        del self.line[bisect.bisect_left(self.line, _in_line(ticket))]
        self.weight = -self.line[0][0] if self.line else self.weight
        self.waiting = self.waiting - ticket.cost if self.line else 0.0

    def is_present(self, since_batch: float) -> bool:
        """Whether it has a turn or reserved work, or was in a batch after `since_batch`."""
        return self.sort_key is not None or self.reserved > 0.0 or self.last_batch > since_batch


class Flows:
    """All clients' lines, and the virtual time.

    Attributes:
        cost: The cost of all flows, reserved work included.
        weight: The sum over the flows that are present.
    """

    def __init__(self) -> None:
        self.size = 0
        self.cost = 0.0
        self.weight = 0.0
        self.num_instances = 1
        self._flows: dict[str, Flow] = {}
        self._without_turn: dict[str, Flow] = {}
        """Flows that linger, have only reserved work, or have paid beyond the virtual time."""
        self._has_texts = False
        self._sort_keys: list[_SortKey] = []
        self._segments: list[_Segment] = []
        self._virtual_time = 0.0
        self._num_batches = 0

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, ticket: Ticket) -> None:
        """Puts a request into its flow's line."""
        flow = self._known(ticket)
        if flow.sort_key and ticket.weight > flow.weight:
            # A lighter one's turn, which is longer, does not delay it.
            flow.start = min(flow.start, self._next_start(flow, ticket))
        if ticket.core is None:
            begin = max(flow.start, flow.finish)
            flow.finish = begin + ticket.turn_cost / ticket.weight
            ticket.finish = flow.finish, ticket.number
        self._insert(flow, ticket)

    def begin(self, text: Ticket) -> None:
        """Reserves a long text's work; notes in `finish` when a fair machine would be done."""
        flow = self._known(text)
        flow.weight = max(flow.active_weight, text.weight)
        flow.texts_finish = max(flow.start, flow.texts_finish) + text.cost / text.weight
        text.finish = flow.texts_finish, text.number
        self._has_texts = True
        self.reserve(text, text.cost)

    def put_back(self, ticket: Ticket) -> None:
        """Puts back a request that was taken and did not run, and refunds its flow."""
        flow = self._known(ticket)
        flow.start -= ticket.turn_cost / ticket.weight
        flow.paid -= ticket.turn_cost / ticket.weight
        self._insert(flow, ticket)

    def remove(self, ticket: Ticket) -> None:
        """Removes a request that will not run; its flow pays nothing."""
        flow = self._remove(ticket)
        self._set_sort_key(flow)
        self._count(flow)
        if not self.size:
            self._start_equal()

    def reserve(self, text: Ticket, cost: float) -> None:
        """Adds to a long text's reserved cost; a negative cost releases some."""
        flow = self._known(text)
        before = flow.reserved
        flow.reserved = before + cost if before + cost > NO_COST else 0.0
        self.cost += flow.reserved - before
        self._count(flow)

    def take(self, turns: Sequence[Turn]) -> None:
        """Removes requests that run together, the first turn first; their flows pay."""
        work = sum([turn.ticket.turn_cost for turn in turns])
        leader = turns[0].ticket
        due = turns[0].start - leader.min_turn_cost / leader.weight
        self._virtual_time = max(self._virtual_time, due) + work / self.weight
        self._num_batches += 1
        for turn in turns:
            payer = turn.flow
            payer.start += turn.end - turn.start
            payer.paid += turn.end - turn.start
            payer.last_batch = self._num_batches
            flow = self._remove(turn.ticket)
            if flow is not payer:
                flow.last_batch = self._num_batches
                self._set_sort_key(payer)
            self._set_sort_key(flow)
        if self._has_texts:
            self._end_turns_for_texts()
        if not self.size:
            self._start_equal()
            return
        since_batch = self._since_batch  # flows that are present no longer
        flows = self._without_turn.values()
        for flow in [f for f in flows if f.last_batch <= since_batch and not f.reserved]:
            self._count(flow)

    def _start_equal(self) -> None:
        """On an idle machine no flow has a debt: only those of long texts are kept."""
        if self._has_texts:
            self._end_turns_for_texts()
        kept = [flow for flow in self._flows.values() if flow.reserved or flow.sort_key]
        self._flows = {flow.name: flow for flow in kept}
        self._without_turn = {flow.name: flow for flow in kept if flow.sort_key is None}
        self.cost = self.weight = 0.0  # removes rounding errors
        for flow in kept:
            flow.start = flow.paid = self._virtual_time
            flow.last_batch = -math.inf
            self.cost += flow.reserved
            self.weight += flow.active_weight

    def _end_turns_for_texts(self) -> None:
        """Ends the turns of flows with an empty line if no text is left to use them."""
        if self._segments or any(flow.reserved for flow in self._flows.values()):
            return
        self._has_texts = False
        for flow in self._flows.values():
            flow.texts_finish = -math.inf
            if flow.sort_key and not flow.line:
                self._set_sort_key(flow)

    def turns(self) -> Iterator[Turn]:
        segments = iter(self._segments)
        further: list[_Further] = []
        for place in self._sort_keys:
            while further and further[0][0] < place:
                if turn := self._turn_at(*heapq.heappop(further), segments, further):
                    yield turn
            if turn := self._turn_at(place, 0, segments, further):
                yield turn
        while further:
            if turn := self._turn_at(*heapq.heappop(further), segments, further):
                yield turn

    def _turn_at(
        self, place: _SortKey, index: int, segments: Iterator[_Segment], further: list[_Further]
    ) -> Turn | None:
        """The turn at a place of a flow, for the request of that index in its line.

        None if the turn is for a long text, and every segment has an earlier one. The flow's next
        place goes on `further`, a heap.
        """
        start, _, name = place
        flow = self._flows[name]
        line, after = flow.line, index + 1
        has_more = after < len(line)
        ticket = line[index][3] if index < len(line) else None
        if ticket is None or ticket.core is not None:
            if (segment := next(segments, None)) is None:
                if has_more:
                    heapq.heappush(further, ((start, line[after][2], name), after))
                return None
            ticket = segment[2]
        end = start + ticket.turn_cost / (ticket.weight if ticket.flow == name else flow.weight)
        if has_more:
            heapq.heappush(further, ((end, line[after][2], name), after))
        elif end < flow.texts_finish:
            heapq.heappush(further, ((end, math.inf, name), after))
        return Turn(start, end, ticket, flow)

    def cost_before(self, ticket: Ticket) -> float:
        """The cost of all that would run before a request that is not queued yet."""
        flow = self._flows.get(ticket.flow) or Flow(ticket.flow, self._virtual_time)
        ahead = [other for weight, _, _, other in flow.line if -weight >= ticket.weight]
        start = flow.start if flow.sort_key else self._next_start(flow, ticket)
        start += sum([other.turn_cost / other.weight for other in ahead])
        others = (other for other in self._flows.values() if other is not flow and other.line)
        return sum([other.cost for other in ahead]) + sum(
            min(other.waiting, other.line[0][3].cost + (start - other.start) * other.weight)
            for other in others
            if other.start <= start
        )

    def cost_until_done(self, text: Ticket) -> float:
        """The cost of all that will have run when a text that has not begun is done.

        Assumes that clients with short requests keep asking; of long texts the rest is known.
        """
        flow = self._flows.get(text.flow) or Flow(text.flow, self._virtual_time)
        own = flow.cost + text.cost
        share = own / text.weight
        since_batch = self._since_batch
        others = [
            other
            for other in self._flows.values()
            if other is not flow and other.is_present(since_batch)
        ]
        return own + sum(
            min(share * other.weight, other.cost if other.reserved else math.inf)
            for other in others
        )

    def _known(self, ticket: Ticket) -> Flow:
        """The flow of a ticket; one without a turn starts after the virtual time."""
        flow = self._flows.get(ticket.flow)
        if flow is None:
            flow = Flow(ticket.flow, self._virtual_time)
            self._flows[ticket.flow] = self._without_turn[ticket.flow] = flow
        if flow.sort_key is None:
            flow.start = self._next_start(flow, ticket)
            flow.paid = max(flow.paid, self._virtual_time)
        return flow

    def _next_start(self, flow: Flow, ticket: Ticket) -> float:
        """When the turn starts of a flow that has none and asks now."""
        turn = ticket.min_turn_cost / ticket.weight
        return max(self._virtual_time + turn, flow.paid - turn)

    @property
    def _since_batch(self) -> int:
        return self._num_batches - LINGER_BATCHES * self.num_instances

    def _insert(self, flow: Flow, ticket: Ticket) -> None:
        flow.insert(ticket)
        self._weigh(flow, flow.weight)
        if ticket.core is not None:
            insert(self._segments, _in_line(ticket)[1:])
        self.size += 1
        self.cost += ticket.cost
        self._set_sort_key(flow)

    def _remove(self, ticket: Ticket) -> Flow:
        """Takes a request out of its flow's line; the flow's place is set by the caller."""
        flow = self._flows[ticket.flow]
        flow.remove(ticket)
        if flow.weight != flow.active_weight:
            self._weigh(flow, flow.weight)
        if ticket.core is not None:
            del self._segments[bisect.bisect_left(self._segments, _in_line(ticket)[1:])]
        self.size -= 1
        self.cost -= ticket.cost
        return flow

    def _set_sort_key(self, flow: Flow) -> None:
        """Moves a flow to its present place, for its first request or a turn for long texts."""
        if flow.sort_key:
            del self._sort_keys[bisect.bisect_left(self._sort_keys, flow.sort_key)]
        if flow.line or flow.start < flow.texts_finish:
            number = flow.line[0][2] if flow.line else math.inf
            flow.sort_key = (flow.start, number, flow.name)
            insert(self._sort_keys, flow.sort_key)
            self._without_turn.pop(flow.name, None)
        else:
            flow.sort_key = None
            self._without_turn[flow.name] = flow

    def _count(self, flow: Flow) -> None:
        """Counts a flow's weight if it is present; else drops it, unless it is in debt."""
        if flow.is_present(self._since_batch):
            self._weigh(flow, flow.weight)
            return
        self._weigh(flow, 0.0)
        if flow.paid <= self._virtual_time:
            del self._flows[flow.name], self._without_turn[flow.name]
            if not self._flows:
                self.cost = self.weight = 0.0  # removes rounding errors

    def _weigh(self, flow: Flow, weight: float) -> None:
        """Replaces a flow's part in `weight`."""
        self.weight += weight - flow.active_weight
        flow.active_weight = weight


def insert(items: list[Item], item: Item) -> None:
    """As `bisect.insort`; most items of a queue come last."""
    if items and item < items[-1]:
        bisect.insort(items, item)
    else:
        items.append(item)


def _in_line(ticket: Ticket) -> _InLine:
    """A line's sort key, with the ticket."""
    return -ticket.weight, ticket.finish, ticket.number, ticket
