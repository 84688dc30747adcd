"""A load to make, and the result of each of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qa_service.data.squad import SquadQuestion
from qa_service.programs.access import Access
from qa_service.programs.load.wire import QaWire, Reply, Wire

WRONG_SPAN = "wrong_span"
"""Error code of an answer whose offsets do not give its text."""


def check_span(question: SquadQuestion, reply: Reply) -> str:
    """The error code of an answer by its span alone; empty if the span is right."""
    return "" if reply.is_right(question.context) else WRONG_SPAN


def check_passage(_: SquadQuestion, reply: Reply) -> str:
    """As `check_span`, for an answer from a collection."""
    return "" if reply.is_right(reply.passage or "") else WRONG_SPAN


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load: how many clients ask which server how many questions.

    A closed loop by default: each client waits for its answer before it asks again, so a slow
    server is asked less. With `rate_per_s` an open loop: requests come at random times (a Poisson
    process) whatever the server does.

    Attributes:
        host: The server's name or address. Connections take the addresses of a name, or several
            names with commas between, in turn.
        questions: Asked in turn, then from the beginning again; at least one.
        num_simultaneous_clients: Clients at a time; in an open loop, connections.
        num_request_per_client: Requests of each client, one after another; an open loop sends
            `num_requests` in total.
        duration_s: How long to send, in place of both counts.
        rate_per_s: Requests per second that an open loop sends on average; None for a closed loop.
        timeout_s: Longest wait for a reply, and for a connection.
        check: Returns an answer's error code; empty for a right answer.
        on_answered: Called when every client of a closed loop has its last answer. The clients
            then stay connected until the server closes; whatever it still sends them is a
            `protocol_error`.
    """

    host: str
    port: int
    questions: Sequence[SquadQuestion]
    num_simultaneous_clients: int = 5
    num_total_clients: int = 100
    num_request_per_client: int = 10
    duration_s: float | None = None
    rate_per_s: float | None = None
    seed: int = 0
    timeout_s: float = 60.0
    access: Access = field(default_factory=Access)
    wire: Callable[[], Wire] = QaWire
    check: Callable[[SquadQuestion, Reply], str] = check_span
    on_answered: Callable[[], object] | None = None

    @property
    def is_open(self) -> bool:
        return self.rate_per_s is not None

    @property
    def num_requests(self) -> int | None:
        """Requests of all clients together; None with `duration_s`."""
        if self.duration_s is not None:
            return None
        return self.num_total_clients * self.num_request_per_client


class Sample(NamedTuple):
    """The result of one request.

    Attributes:
        started_s: When it was about to be sent or, in an open loop, was due; `time.perf_counter`.
        latency_ms: From `started_s` to the reply or the failure.
        error_code: Empty for an answer.
        question_index: The question's index in the plan; -1 without a connection.
    """

    started_s: float
    latency_ms: float
    error_code: str = ""
    question_index: int = -1

    @property
    def ended_s(self) -> float:
        return self.started_s + self.latency_ms / 1e3
