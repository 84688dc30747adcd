"""Loads on a target over `qa_service.load`, and what they came to.

A timed load is measured in a window. It starts before the window and is drained after it:
throughput counts the answers that end within the window, latency all requests that start in it,
the slowest too. The CPU time of the load generator itself is part of what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.tables import percentile
from benchmarks.targets import Running
from benchmarks.texts import Item
from qa_service.load.generator import run_load
from qa_service.load.plan import LoadPlan, Sample


@dataclass(frozen=True, slots=True)
class Load:
    """What a load came to.

    Attributes:
        samples: Its requests, in the order of their ends.
        window_s: When the measurement started and ended, by `time.perf_counter`.
        cpu_share: Of one core, what the generator used.
    """

    samples: list[Sample]
    window_s: tuple[float, float]
    cpu_share: float

    @property
    def throughput_per_s(self) -> float:
        """Answers per second that ended within the window."""
        return self.work_per_s(None)

    def work_per_s(self, weights: Sequence[float] | None) -> float:
        """The same, each answer counted by its item's weight."""
        start_s, end_s = self.window_s
        ended = [s for s in self.samples if not s.error_code and start_s <= s.ended_s < end_s]
        return sum(weights[s.question_index] if weights else 1 for s in ended) / (end_s - start_s)

    @property
    def num_failed(self) -> int:
        """Requests that got no answer."""
        return sum(bool(sample.error_code) for sample in self.samples)

    def latencies_ms(self, kinds: Sequence[str] = (), kind: str = "") -> list[float]:
        """Latencies of the answered requests that started in the window.

        Args:
            kinds: The kind of each of the items, if only one kind is wanted.
            kind: That kind.
        """
        start_s, end_s = self.window_s
        return [
            sample.latency_ms
            for sample in self.samples
            if not sample.error_code
            and start_s <= sample.started_s < end_s
            and (not kind or kinds[sample.question_index] == kind)
        ]

    def p_ms(self, percent: float) -> float:
        """A percentile of the latencies."""
        return percentile(self.latencies_ms(), percent)


def timed(
    server: Running,
    items: Sequence[Item],
    clients: int,
    warmup_s: float,
    duration_s: float,
    *,
    first: int = 0,
) -> Load:
    """Loads a target for a while; the window begins after the warmup."""
    start_s = time.perf_counter() + warmup_s
    plan = server.plan(
        [item.asked for item in items],
        num_simultaneous_clients=clients,
        duration_s=warmup_s + duration_s,
        first=first,
    )
    samples, cpu_share = _run(plan)
    return Load(samples, (start_s, start_s + duration_s), cpu_share)


def counted(server: Running, items: Sequence[Item], clients: int, requests_each: int) -> Load:
    """Has each client ask so many questions; the window is the whole load."""
    started_s = time.perf_counter()
    plan = server.plan(
        [item.asked for item in items],
        num_simultaneous_clients=clients,
        num_total_clients=clients,
        num_request_per_client=requests_each,
    )
    samples, cpu_share = _run(plan)
    return Load(samples, (started_s, time.perf_counter()), cpu_share)


def opened(
    server: Running, items: Sequence[Item], rate_per_s: float, duration_s: float, *, seed: int = 0
) -> Load:
    """Sends requests at random moments, whatever the target does; the window is all of them."""
    started_s = time.perf_counter()
    plan = server.plan(
        [item.asked for item in items],
        num_simultaneous_clients=16,
        duration_s=duration_s,
        rate_per_s=rate_per_s,
        seed=seed,
    )
    samples, cpu_share = _run(plan)
    return Load(samples, (started_s, time.perf_counter()), cpu_share)


def _run(plan: LoadPlan) -> tuple[list[Sample], float]:
    """The samples in the order of their ends, and the generator's share of a core."""
    cpu_s, started_s = time.process_time(), time.perf_counter()
    samples = [sample for batch in run_load(plan) for sample in batch]
    share = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
    return sorted(samples, key=lambda sample: sample.ended_s), share
