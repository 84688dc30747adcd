"""What the scheduler and the dispatcher note of a call while it waits and runs."""

from __future__ import annotations

from qa_service.server.scheduling.call import Call


class Ticket:
    """A call in the queue or at an instance.

    Attributes:
        tokens: An estimate.
        core: For a segment of a long text, the range in which its spans start, in code points;
            else None. The queue's bounds do not apply to segments: their text was admitted.
        moves: How often an instance ended before it ran it.
        cost: An estimate, in milliseconds of an instance.
        turn_cost: What its flow pays for its turn: the cost, or `min_turn_cost` if that is more (of
            a segment, the cost).
        min_turn_cost: The cost of `MIN_TURN_TOKENS`; 0 where turns have no minimum.
        finish: When a fair machine would finish it, in virtual time, and a number that breaks ties;
            a segment has its text's.
        number: Its place in the order of arrival.
        is_queued: Whether it waits for its first run.
    """

    __slots__ = (
        "arrived_s", "attempts", "call", "core", "cost", "deadline_s", "finish", "flow",
        "is_queued", "min_turn_cost", "moves", "number", "tokens", "turn_cost", "weight",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        tokens: int,
        core: tuple[int, int] | None = None,
        finish: tuple[float, int] = (0.0, 0),
    ) -> None:
        scope = call.scope
        self.call = call
        self.arrived_s = scope.arrived_s
        self.deadline_s = scope.deadline_s
        self.flow = scope.flow
        self.weight = scope.weight
        self.tokens = tokens
        self.core = core
        self.finish = finish
        self.attempts = self.moves = 0
        self.cost = self.turn_cost = self.min_turn_cost = 0.0
        self.number = -1
        self.is_queued = False
