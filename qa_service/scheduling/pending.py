"""A request on its way through the services, until it is settled: resolved or failed, once."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import msgspec

from qa_service.errors import QaError
from qa_service.wire.messages import UNKNOWN_SOURCE, Answer, AnswerSource, Request, Timings
from qa_service.wire.spans import Findings

SAMPLES = 64
SAMPLE_CHARS = 64
SIGNS = string.punctuation.encode()


class Answered(msgspec.Struct, frozen=True):
    """What a request came to.

    Attributes:
        answers: At least one, best first.
        timings: Where the time went.
        findings: What was found in a segment, which is not made answers yet; else None.
    """

    answers: Sequence[Answer]
    timings: Timings
    findings: Findings | None = None


Outcome = Answered | QaError


class PendingRequest(msgspec.Struct, eq=False):
    """A request, its times, and who is told what it came to.

    Attributes:
        request: What was asked.
        arrived_s: When it arrived, on the clock of whoever made it.
        deadline_s: When it expires if no instance has begun with it; infinity for never.
        on_settled: Told once what it came to; not if it was abandoned.
        name: Names it in the log.
        flow: Whose share of the machine it counts against: a client's.
        weight: How large that share is, relative to others'; what weighs more goes first
            within its flow.
        trace_id: The trace that it belongs to, for the log; empty for none.
        tokens: About how many tokens it will be; estimated unless given.
        core: Of a segment of a longer text, where its spans start, in code points; else None.
        is_admitted: Whether the queue's bounds do not apply to it: it is part of what was
            admitted before.
        attempts: How many instances have died running it.
        moves: How often it was put back for no fault of its own.
        cost: About what running it costs, in milliseconds of an instance; the dispatcher's.
        turn_cost: What its turn costs its flow if that is more than the cost: a full window's.
        finish: When a fair machine would be done with it, in virtual time, and its number, which
            tells equal ones apart; the scheduler's. Of a segment, its text's.
        number: Its place in the order of arrival; the scheduler's, as is the next one.
        is_queued: Whether it waits for its first run.
        is_settled: Whether it has been resolved, failed or abandoned.
        source: What answers it; the router's, and of what answers instead of a model.
        on_cancel: Drops it, where it went when it was routed; the router's.
    """

    request: Request
    arrived_s: float
    deadline_s: float
    on_settled: Callable[[PendingRequest, Outcome], None]
    name: str = ""
    flow: str = ""
    weight: float = 1.0
    trace_id: str = ""
    tokens: int = 0
    core: tuple[int, int] | None = None
    is_admitted: bool = False
    attempts: int = 0
    moves: int = 0
    cost: float = 0.0
    turn_cost: float = 0.0
    finish: tuple[float, int] = (0.0, 0)
    number: int = -1
    is_queued: bool = False
    is_settled: bool = False
    source: AnswerSource = UNKNOWN_SOURCE
    on_cancel: Callable[[PendingRequest], None] | None = None

    def __post_init__(self) -> None:
        """Estimates its tokens, unless they are given."""
        self.tokens = self.tokens or estimate_tokens(self.request)

    @property
    def log_extra(self) -> dict[str, str] | None:
        """What its log lines have beside their words."""
        return {"trace_id": self.trace_id} if self.trace_id else None

    def resolve(self, answers: Sequence[Answer], timings: Timings) -> None:
        """Hands over the answers; does nothing if it is settled."""
        self.settle(Answered(answers, timings))

    def resolve_segment(self, findings: Findings, timings: Timings) -> None:
        """Hands over what was found in a segment; does nothing if it is settled."""
        self.settle(Answered((), timings, findings))

    def fail(self, error: QaError) -> None:
        """Hands over an error; does nothing if it is settled."""
        self.settle(error)

    def abandon(self) -> None:
        """Settles it without a word: nobody waits for it any more."""
        self.is_settled = True
        self.on_settled = _nobody

    def derive(
        self,
        request: Request,
        on_settled: Callable[[PendingRequest, Outcome], None],
        suffix: str,
    ) -> PendingRequest:
        """Makes a request of its own, with this one's times, flow and share.

        Args:
            request: What it asks.
            on_settled: Told what it came to.
            suffix: What its name has beyond this one's.
        """
        return PendingRequest(
            request,
            self.arrived_s,
            self.deadline_s,
            on_settled,
            self.name + suffix,
            self.flow,
            self.weight,
            self.trace_id,
        )

    def settle(self, outcome: Outcome) -> None:
        """Hands over what it came to; does nothing if it is settled.

        It lets go of whoever was told, so that what holds it and is held by it is freed at once,
        the text with it, and not when the garbage collector comes by.
        """
        if not self.is_settled:
            on_settled, self.on_settled = self.on_settled, _nobody
            self.is_settled = True
            on_settled(self, outcome)


def _nobody(pending: PendingRequest, outcome: Outcome) -> None:
    """Told what becomes of a request that is settled: nothing more."""


def estimate_tokens(request: Request) -> int:
    """Estimates how many tokens a request will be.

    English has about four bytes of UTF-8 to a token of BERT's vocabularies, Chinese and Japanese
    three, which is one character. Of a text of signs, each is a token.
    """
    return 3 + int(tokens_of(request.question) + tokens_of(request.text))


def tokens_of(text: str) -> float:
    """About how many tokens a text has; of a long one, by samples of it."""
    sample = text
    if len(text) > SAMPLES * SAMPLE_CHARS:
        starts = range(0, len(text), len(text) // SAMPLES)
        sample = "".join([text[start : start + SAMPLE_CHARS] for start in starts])
    data = sample.encode()
    num_signs = len(data) - len(data.translate(None, SIGNS))
    num_tokens = max(len(data) / 4, num_signs + (len(data) - num_signs) / 5)
    return num_tokens * len(text) / max(1, len(sample))
