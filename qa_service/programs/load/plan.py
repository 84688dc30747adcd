"""A load to make, the result of each of its requests, and statistics over all."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qa_service.data.squad import SquadQuestion
from qa_service.machine import num_cpus
from qa_service.programs.access import Access
from qa_service.programs.load.wire import QaWire, Reply, Wire

WRONG_SPAN = "wrong_span"
"""Error code of an answer whose offsets do not give its text."""
PERCENTS = (50, 90, 99)
Check = Callable[[SquadQuestion, Reply], str]
"""Returns an answer's error code; empty for a right answer."""


def check_span(question: SquadQuestion, reply: Reply) -> str:
    """The error code of an answer by its span alone; empty if the span is right."""
    text = question.context if reply.passage is None else reply.passage
    is_right = reply.start is None or text[reply.start : reply.end] == reply.answer
    return "" if is_right else WRONG_SPAN


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
    check: Check = check_span
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


@dataclass(frozen=True, slots=True)
class Report:
    """How the requests of a load went.

    Attributes:
        num_answered: `Unknown` answers included.
        duration_s: From the first request's start to the last one's end.
        mean_ms: Latency of the answered requests; NaN without any.
        std_ms: Of the population, as `numpy.std`.
        percentiles_ms: Latency by percent, see `percentile`.
        generator_cores: CPU seconds of the load generator per second; NaN if not measured. It has
            one thread: near 1, the generator and not the server limits the figures.
    """

    num_answered: int
    duration_s: float
    mean_ms: float
    std_ms: float
    percentiles_ms: Mapping[int, float]
    errors: Mapping[str, int] = field(default_factory=dict)
    generator_cores: float = math.nan
    interrupted: bool = False

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        *,
        generator_cores: float = math.nan,
        interrupted: bool = False,
    ) -> Report:
        answered_ms = sorted(sample.latency_ms for sample in samples if not sample.error_code)
        started_s = min((sample.started_s for sample in samples), default=0.0)
        ended_s = max((sample.ended_s for sample in samples), default=0.0)
        return cls(
            num_answered=len(answered_ms),
            duration_s=ended_s - started_s,
            mean_ms=statistics.fmean(answered_ms) if answered_ms else math.nan,
            std_ms=statistics.pstdev(answered_ms) if answered_ms else math.nan,
            percentiles_ms={percent: percentile(answered_ms, percent) for percent in PERCENTS},
            errors=Counter(sample.error_code for sample in samples if sample.error_code),
            generator_cores=generator_cores,
            interrupted=interrupted,
        )

    @property
    def num_failed(self) -> int:
        return sum(self.errors.values())

    @property
    def throughput(self) -> float:
        """Answered requests per second."""
        return self.num_answered / self.duration_s if self.duration_s else 0.0

    def __str__(self) -> str:
        percentiles = (f"p{percent} {ms:.2f} ms" for percent, ms in self.percentiles_ms.items())
        by_code = ", ".join(f"{code} {number}" for code, number in sorted(self.errors.items()))
        lines = [
            f"Latency:     {self.mean_ms:.2f} ± {self.std_ms:.2f} ms (mean ± std)",
            f"Percentiles: {', '.join(percentiles)}",
            f"Throughput:  {self.throughput:.1f} requests/s",
            f"Requests:    {self.num_answered} answered in {self.duration_s:.2f} s",
        ]
        if not math.isnan(self.generator_cores):
            lines.append(f"Generator:   {share_of_cores(self.generator_cores)}")
        return "\n".join([*lines, f"Errors:      {self.num_failed}{by_code and f' ({by_code})'}"])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, above 0 to 100, of ascending values; NaN without any."""
    if not ordered:
        return math.nan
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def share_of_cores(cores: float) -> str:
    """The CPU time of the load generator, in words."""
    num_cores = num_cpus()
    full = "; its one core is full: these are its figures, not the server's" * (cores > 0.9)
    return f"{cores / num_cores:.1%} of the CPU time of {num_cores} cores{full}"
