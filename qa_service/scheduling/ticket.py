"""What the scheduler and the dispatcher note of a call while it waits and runs."""

from __future__ import annotations

from qa_service.scheduling.call import Call


class Ticket:
    """A call in the queue or at an instance.

    Args:
        call: The call.
        tokens: About how many tokens it will be.
        core: Of a segment of a longer text, where its spans start, in code points; else None.
        finish: Of a segment, its text's.

    Attributes:
        call: The call; the next four are its scope's.
        tokens: About how many tokens it will be.
        core: Where a segment's spans start; None of a whole text. The queue's bounds do not apply
            to a segment: its text was admitted before.
        attempts: How many instances have died running it.
        moves: How often it was put back for no fault of its own.
        cost: About what running it costs, in milliseconds of an instance.
        turn_cost: What its turn costs its flow if that is more than the cost: a full window's.
        finish: When a fair machine would be done with it, in virtual time, and its number, which
            tells equal ones apart.
        number: Its place in the order of arrival.
        is_queued: Whether it waits for its first run.
    """

    __slots__ = (
        "arrived_s", "attempts", "call", "core", "cost", "deadline_s", "finish", "flow",
        "is_queued", "moves", "number", "tokens", "turn_cost", "weight",
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
        self.cost = self.turn_cost = 0.0
        self.number = -1
        self.is_queued = False
