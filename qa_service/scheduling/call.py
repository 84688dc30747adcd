"""A request on its way through the services, until it ends: answered, failed or cancelled, once.

    call ──settle──▶ its children are cancelled ▸ on_end: who holds it drops it ▸ completions
      └────cancel──▶ the same, without the completions: nobody waits for the outcome

A service that looks at the answer adds a completion with `then`. One that holds the call in a queue
or a table says with `on_end` how to drop it. One that asks on its own behalf submits children:
they end with their parent. A run that others wait for is no child, but a `Call` of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from qa_service.errors import InternalError, QaError
from qa_service.telemetry.spans import Span
from qa_service.wire.messages import UNKNOWN_SOURCE, Answer, AnswerSource, Request, Timings
from qa_service.wire.spans import Findings

logger = logging.getLogger(__name__)


class Answered(msgspec.Struct, frozen=True):
    """The answers to a request.

    Attributes:
        answers: One or more, best first; none of a segment.
        timings: Where the time went.
        source: What has answered; a version of a model completes it.
        findings: What was found in a segment of a long text; else None.
    """

    answers: Sequence[Answer]
    timings: Timings
    source: AnswerSource = UNKNOWN_SOURCE
    findings: Findings | None = None


Outcome = Answered | QaError
Completion = Callable[[Outcome], Outcome | None]
"""Sees an outcome; what it returns takes the outcome's place, None leaves it."""


class Scope(msgspec.Struct, frozen=True):
    """What a call and its children share.

    Attributes:
        arrived_s: When the request arrived, on the loop's clock.
        deadline_s: When the request expires if no instance has begun with it; infinity for never.
        flow: Whose share of the machine it counts against: a client's.
        weight: How large that share is, relative to others'; what weighs more goes first
            within its flow.
        trace_id: The trace that it belongs to, for the log; empty for none.
        name: Names it in the log.
        span: Where what is done for it is recorded; None if it is not traced.
    """

    arrived_s: float
    deadline_s: float
    flow: str = ""
    weight: float = 1.0
    trace_id: str = ""
    name: str = ""
    span: Span | None = None

    @property
    def log_extra(self) -> dict[str, str] | None:
        """What its log lines have beside their words."""
        return {"trace_id": self.trace_id} if self.trace_id else None

    def derive(self, suffix: str, **changes: object) -> Scope:
        """The same under a longer name, but for what is changed."""
        return msgspec.structs.replace(self, name=self.name + suffix, **changes)


class Call:
    """A request, and what happens when it ends.

    Args:
        request: What is asked.
        scope: Its times, flow and name.

    Attributes:
        request: What is asked.
        scope: Its times, flow and name.
        is_settled: Whether it has ended: resolved, failed or cancelled.
        is_cancelled: Whether it has ended without an outcome.
    """

    __slots__ = (
        "_children", "_completions", "_holders", "_parent", "is_cancelled", "is_settled", "request",
        "scope",
    )  # fmt: skip

    def __init__(self, request: Request, scope: Scope) -> None:
        self.request = request
        self.scope = scope
        self.is_settled = self.is_cancelled = False
        self._completions: list[Completion] = []
        self._holders: list[Callable[[Call], None]] = []
        self._children: dict[Call, None] = {}
        self._parent: Call | None = None

    def then(self, completion: Completion) -> None:
        """Adds a completion, which runs before those that are there; never if it is cancelled."""
        if not self.is_settled:
            self._completions.append(completion)

    def on_end(self, drop: Callable[[Call], None]) -> None:
        """Has `drop` run once when it has ended in any way; at once if it has ended already."""
        if self.is_settled:
            drop(self)
        else:
            self._holders.append(drop)

    def child(self, request: Request, suffix: str, **changes: object) -> Call:
        """Makes a call that ends when this one does.

        Args:
            request: What it asks.
            suffix: What its name has beyond this one's.
            changes: What else of its scope is its own.
        """
        child = Call(request, self.scope.derive(suffix, **changes))
        if self.is_settled:
            child.cancel()
        else:
            child._parent = self
            self._children[child] = None
        return child

    def resolve(self, answers: Sequence[Answer], timings: Timings) -> None:
        """Ends it with answers; does nothing if it has ended."""
        self.settle(Answered(answers, timings))

    def fail(self, error: QaError) -> None:
        """Ends it with an error; does nothing if it has ended."""
        self.settle(error)

    def settle(self, outcome: Outcome) -> None:
        """Ends it with an outcome; does nothing if it has ended."""
        if self.is_settled:
            return
        parent = self._parent
        self._end()
        while self._completions:
            try:
                outcome = self._completions.pop()(outcome) or outcome
            except Exception:
                logger.exception("request %s: its outcome could not be handled", self.scope.name)
                outcome = InternalError()
                if parent is not None:
                    parent.fail(outcome)  # what was to tell it may be what has failed

    def cancel(self) -> None:
        """Ends it without an outcome: nobody waits for it any more."""
        if not self.is_settled:
            self.is_cancelled = True
            self._completions.clear()
            self._end()

    def _end(self) -> None:
        """Lets go of all that it holds and is held by, so that its text is freed at once."""
        self.is_settled = True
        if self._parent is not None:
            del self._parent._children[self]
            self._parent = None
        if self._children:
            for child in list(self._children):
                child.cancel()
        while self._holders:
            try:
                self._holders.pop()(self)
            except Exception:
                logger.exception("request %s: it could not be dropped", self.scope.name)
