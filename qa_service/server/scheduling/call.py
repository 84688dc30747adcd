"""A request on its way through the services, until it ends: answered, failed or cancelled, once.

    call ──settle──▶ its children are cancelled ▸ on_end: its holders drop it ▸ completions
      └────cancel──▶ the same without completions: its client has disconnected

A service that looks at the answer adds a completion with `then`. A service that holds the call in a
queue or a table registers with `on_end` how to drop it. A service that asks on its own behalf
submits children, which end with their parent. A run for several calls is no child but a `Call` of
its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence

import msgspec

from qa_service.errors import DeadlineExceededError, InternalError, QaError
from qa_service.wire.messages import Answer, Answered, Request, Timings
from qa_service.wire.spans import SegmentResult
from qa_service.wire.traces import Span

logger = logging.getLogger(__name__)


class SegmentRead(Answered, frozen=True, kw_only=True):
    """What was found in a segment of a long text; it has no answers."""

    segment: SegmentResult


Outcome = Answered | QaError
Completion = Callable[[Outcome], Outcome | None]
"""Sees an outcome; returns another to replace it, or None to keep it."""


class Scope(msgspec.Struct, frozen=True):
    """What a call and its children share.

    Attributes:
        deadline_s: When the request expires if no instance has started it; infinity for never.
        flow: The client whose share of the machine it uses.
        weight: The size of that share relative to others; within a flow, more weight goes first.
        max_timeout_s: The longest timeout that a request may have here; infinity for any.
        trace_id: For the log; empty for none.
        span: The call's span in its trace; None if it is not traced.
    """

    arrived_s: float
    deadline_s: float
    flow: str = ""
    weight: float = 1.0
    trace_id: str = ""
    name: str = ""
    span: Span | None = None
    max_timeout_s: float = math.inf

    @property
    def log_extra(self) -> dict[str, str] | None:
        return {"trace_id": self.trace_id} if self.trace_id else None

    def derive(self, suffix: str, **changes: object) -> Scope:
        """A copy with a longer name and some changes."""
        return msgspec.structs.replace(self, name=self.name + suffix, **changes)


class Call(msgspec.Struct, eq=False):
    """A request, and what happens when it ends.

    Attributes:
        is_cancelled: Whether it ended without an outcome.
    """

    request: Request
    scope: Scope
    is_settled: bool = False
    is_cancelled: bool = False
    _completions: list[Completion] = msgspec.field(default_factory=list)
    _holders: list[Callable[[Call], object]] = msgspec.field(default_factory=list)
    _children: dict[Call, None] = msgspec.field(default_factory=dict)
    _parent: Call | None = None

    def then(self, completion: Completion) -> None:
        """Adds a completion, to run before the earlier ones; none runs if the call is cancelled."""
        if not self.is_settled:
            self._completions.append(completion)

    def on_end(self, drop: Callable[[Call], object]) -> None:
        """Runs `drop` once when the call ends in any way; at once if it has ended."""
        if self.is_settled:
            drop(self)
        else:
            self._holders.append(drop)

    def child(self, request: Request, suffix: str, **changes: object) -> Call:
        """Makes a call that ends when this one does.

        Args:
            changes: Fields of the scope to replace.
        """
        child = Call(request, self.scope.derive(suffix, **changes))
        if self.is_settled:
            child.cancel()
        else:
            child._parent = self
            self._children[child] = None
        return child

    def resolve(self, answers: Sequence[Answer], timings: Timings) -> None:
        self.settle(Answered(answers, timings))

    def fail(self, error: QaError) -> None:
        self.settle(error)

    def settle(self, outcome: Outcome) -> None:
        """Ends it with an outcome; does nothing if it has ended."""
        if self.is_settled:
            return
        parent, completions = self._parent, self._completions
        self._end()
        while completions:
            try:
                outcome = completions.pop()(outcome) or outcome
            except Exception:
                logger.exception("request %s: its outcome could not be handled", self.scope.name)
                outcome = InternalError()
                if parent is not None:
                    parent.fail(outcome)  # the completion that failed may be the parent's

    def cancel(self) -> None:
        """Ends it without an outcome: its client has disconnected."""
        if not self.is_settled:
            self.is_cancelled = True
            self._completions.clear()
            self._end()

    def _end(self) -> None:
        """Drops all references from and to the call, so that its text is freed at once."""
        self.is_settled = True
        if self._parent is not None:
            del self._parent._children[self]
            self._parent = None
        if self._children:
            for child in list(self._children):
                child.cancel()
        holders = self._holders
        while holders:
            try:
                holders.pop()(self)
            except Exception:
                logger.exception("request %s: it could not be dropped", self.scope.name)


def fail_expired(calls: Collection[Call], now_s: float) -> float:
    """Fails the calls whose deadline has passed; returns the next deadline, infinity for none."""
    for call in calls:
        if call.scope.deadline_s <= now_s:
            call.fail(DeadlineExceededError())
    return min((call.scope.deadline_s for call in calls if not call.is_settled), default=math.inf)
