"""Loads on a target over `qa_service.programs.load`, and the figures of a timed one.

A timed load is measured in a window. It starts before the window and is drained after it:
throughput counts the answers that end within the window, latency all requests that start in it,
the slowest too. The CPU time of the load generator itself is part of what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.tables import percentile
from benchmarks.targets import Running
from benchmarks.texts import Item
from harness.process import cpu_s
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import Sample

Figures = dict[str, float]


def load(server: Running, items: Sequence[Item], **fields: Any) -> list[Sample]:
    """Makes a load; its requests in the order of their ends. `fields` are those of `LoadPlan`."""
    batches = run_load(server.plan([item.asked for item in items], **fields))
    return sorted((sample for batch in batches for sample in batch), key=lambda s: s.ended_s)


def counted(
    server: Running, items: Sequence[Item], clients: int, requests_each: int
) -> list[Sample]:
    """Has each client ask a number of questions.

    Raises:
        RuntimeError: A request failed.
    """
    counts = {"num_total_clients": clients, "num_request_per_client": requests_each}
    samples = load(server, items, num_simultaneous_clients=clients, **counts)
    if failed := sum(bool(sample.error_code) for sample in samples):
        raise RuntimeError(f"{failed} requests failed")
    return samples


def measure(
    server: Running,
    items: Sequence[Item],
    clients: int,
    warmup_s: float,
    duration_s: float,
    *,
    first: int = 0,
) -> Figures:
    """Loads a server for a while and keeps the figures of the window after the warmup.

    `cpu_share` is the generator's, of one core; `cpu_ms` that of all processes of the server and
    `loop_us` that of its first one, for one request.

    Args:
        first: Which of the items to start with.
    """
    first %= len(items)
    items = [*items[first:], *items[:first]]
    before_s, loop_before_s, own_s = server.cpu_s(), cpu_s(server.pid), time.process_time()
    began_s = time.perf_counter()
    fields = {"num_simultaneous_clients": clients, "duration_s": warmup_s + duration_s}
    samples = load(server, items, **fields)
    answered = max(1, len(samples))
    start_s = began_s + warmup_s
    kept = figures(samples, (start_s, start_s + duration_s), items) | {
        "cpu_share": (time.process_time() - own_s) / (time.perf_counter() - began_s),
        "cpu_ms": (server.cpu_s() - before_s) * 1e3 / answered,
        "loop_us": (cpu_s(server.pid) - loop_before_s) * 1e6 / answered,
    }
    return {name: round(value, 4) for name, value in kept.items()}


def figures(
    samples: Sequence[Sample], window_s: tuple[float, float], items: Sequence[Item]
) -> Figures:
    """The figures of a window; each kind's latencies apart too, if there are several kinds."""
    start_s, end_s = window_s
    answered = [sample for sample in samples if not sample.error_code]
    ended = [sample for sample in answered if start_s <= sample.ended_s < end_s]
    started = [sample for sample in answered if start_s <= sample.started_s < end_s]
    weight = weights(items)
    kept = {
        "throughput": len(ended) / (end_s - start_s),
        "work": sum(weight[sample.question_index] for sample in ended) / (end_s - start_s),
        "requests": float(len(started)),
        "failed": float(len(samples) - len(answered)),
    }
    kinds = sorted({item.kind for item in items})
    for kind in ("", *kinds) if len(kinds) > 1 else ("",):
        of_kind = [s.latency_ms for s in started if kind in {"", items[s.question_index].kind}]
        name = kind and f"{kind}_"
        kept |= {f"{name}p{percent}": percentile(of_kind, percent) for percent in (50, 99)}
    return kept


def weights(items: Sequence[Item]) -> list[float]:
    """Each item's length over the mean length: about what share of the work it is."""
    lengths = [len(item.question) + len(item.text) for item in items]
    return [length * len(items) / sum(lengths) for length in lengths]
