"""Statistics over all requests of a load."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qa_service.machine import num_cpus
from qa_service.programs.load.plan import Sample

PERCENTS = (50, 90, 99)


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
        """Sums up the requests of a load."""
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
