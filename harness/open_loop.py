"""Requests at a rate that does not depend on their answers.

A closed loop cannot overload a server: its clients wait, and with them the load.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.load import QuietAnswers, report_of, samples_of
from qa_service.load.plan import Sample
from qa_service.load.report import Report, percentile

CLOSED_LOOP_CLIENTS = 16
HEADER = (
    f"{'offered':>8} {'goodput':>8} {'refused':>8} {'refusal p50':>11} {'p99':>8} "
    f"{'admitted p50':>12} {'p99':>8} {'max ms':>8}"
)


@dataclass(frozen=True, slots=True)
class OpenLoopReport:
    """What a rate of requests came to. Latencies count from when a request was due.

    Attributes:
        offered_per_s: Requests sent, per second.
        admitted: Report on all requests; its figures are those of the right answers.
        refused: Report on the refused ones alone, as if a refusal were an answer.
        max_ms: Longest latency of a right answer.
    """

    offered_per_s: float
    admitted: Report
    refused: Report
    max_ms: float

    @classmethod
    def of(cls, samples: list[Sample]) -> OpenLoopReport:
        """Sums up the requests of a load."""
        refused = [sample._replace(error_code="") for sample in samples if sample.error_code]
        starts_s = [sample.started_s for sample in samples]
        return cls(
            offered_per_s=len(samples) / (max(starts_s) - min(starts_s)),
            admitted=Report.of(samples),
            refused=Report.of(refused),
            max_ms=percentile(sorted(s.latency_ms for s in samples if not s.error_code), 100),
        )

    @property
    def goodput_per_s(self) -> float:
        """Right answers, per second, from the first request to the last reply."""
        return self.admitted.throughput

    def __str__(self) -> str:
        refused, admitted = self.refused.percentiles_ms, self.admitted.percentiles_ms
        return (
            f"{self.offered_per_s:8.1f} {self.goodput_per_s:8.1f} {self.admitted.num_failed:8d} "
            f"{refused[50]:11.2f} {refused[99]:8.2f} "
            f"{admitted[50]:12.1f} {admitted[99]:8.1f} {self.max_ms:8.1f}"
        )


def capacity_per_s(answers: QuietAnswers, duration_s: float) -> float:
    """Answers a second to clients that wait for theirs, enough of them to keep it busy."""
    return report_of(answers.plan(CLOSED_LOOP_CLIENTS, duration_s)).throughput


def offer(
    answers: QuietAnswers,
    *,
    rate_per_s: float,
    duration_s: float,
    num_connections: int,
    seed: int,
) -> OpenLoopReport:
    """Sends requests at random moments (a Poisson process), whatever comes back."""
    plan = answers.plan(num_connections, duration_s, rate_per_s=rate_per_s, seed=seed)
    return OpenLoopReport.of(samples_of(plan))
