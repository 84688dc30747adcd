"""The metrics as Prometheus' families: Triton's names for what Triton counts, `qa_` for the rest.

A request is one question, even if an HTTP request brought several. As in Triton, times of batches
are added once for each request in the batch.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qa_service import __version__
from qa_service.server.telemetry.metrics import ABANDONED, ANSWERED, Metrics, ModelMetrics
from qa_service.wire.error_codes import ERRORS
from qa_service.wire.histogram import Histogram
from qa_service.wire.http.model_reports import ModelReport, ModelStatistics, StatisticDuration
from qa_service.wire.http.prometheus import Family, Labels, Sample, histogram_samples

REASONS = {
    reason: tuple(code for code, row in ERRORS.items() if row.triton_reason == reason)
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
} | {"CANCELED": ("cancelled", ABANDONED)}
"""Triton's reasons for a failed request, each with its outcomes."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

HELP = {
    "requests_total": "Requests and rejected messages, by outcome.",
    "request_retries_total": "Requests queued again because their instance died.",
    "queries_total": "Questions about the server, by type.",
    "batches_total": "Batches that an instance has answered.",
    "cache_hits_total": "Questions answered from the cache.",
    "cache_joined_total": "Questions answered by the run of an equal one.",
    "cache_misses_total": "Questions that the cache did not have, and were run.",
    "cache_evictions_total": "Answers dropped from the cache to make room.",
    "session_restarts_total": "Instances started again after a death.",
    "self_tests_total": "Self-tests of instances that serve, and failed ones of starts.",
    "trace_spans_total": "Spans of traced requests, by outcome.",
    "connections_accepted_total": "Connections accepted.",
    "connections_evicted_total": "Silent connections closed for new ones at --max_connections.",
    "queue_ms": "Time from a request's arrival until an instance began with it.",
    "request_ms": "Time from a request's arrival to its batch's return.",
    "inference_ms": "Time of a batch in its instance.",
    "inference_tokenize_ms": "Time of a batch from texts to windows of tokens.",
    "inference_model_ms": "Time of a batch in the model.",
    "inference_read_ms": "Time of a batch for finding the answers in the logits.",
    "batch_size": "Requests in a batch.",
}
GAUGES = {
    "connections_open": ("qa_connections", "Open connections."),
    "requests_in_flight": ("qa_requests_in_flight", "Requests accepted and not answered yet."),
    "queue_length": ("qa_queue_length", "Requests waiting for an instance."),
    "cache_bytes": ("qa_cache_bytes", "Memory that the cache takes, in bytes."),
    "cache_entries": ("qa_cache_entries", "Questions that the cache has answers to."),
    "reload_failed": (
        "qa_reload_failed",
        "1 if the configuration or a folder of models could not be read again, else 0.",
    ),
}
LABELS = {
    "requests_total": "outcome",
    "queries_total": "type",
    "self_tests_total": "result",
    "trace_spans_total": "outcome",
}


def families(
    metrics: Metrics, gauges: Mapping[str, float], versions: Sequence[ModelReport]
) -> Iterator[Family]:
    """All metrics.

    Args:
        gauges: Current values, by the names of a `stats` report.
    """
    yield from _triton(versions)
    for name, value in metrics.totals().items():
        if isinstance(value, Histogram):
            yield _histogram(name, value)
        elif isinstance(value, dict):
            samples = [Sample(count, {LABELS[name]: key}) for key, count in value.items()]
            yield Family(f"qa_{name}", "counter", HELP[name], samples)
        else:
            yield Family(f"qa_{name}", "counter", HELP[name], [Sample(value, {})])
    for name, (renamed, text) in GAUGES.items():
        yield Family(renamed, "gauge", text, [Sample(gauges[name], {})])
    states = [
        Sample(gauges[f"sessions_{state}"], {"state": state}) for state in ("alive", "wanted")
    ]
    yield Family("qa_instances", "gauge", "Instances that can take batches, and wanted.", states)
    for name, (text, figure) in _VERSIONS.items():
        samples = [Sample(figure(one), _labels(one)) for one in versions]
        yield Family(f"qa_model_{name}", "gauge", text, samples)
    info = [Sample(1, {**_labels(one), "engine": one.engine_type, "precision": one.precision})
            for one in versions]  # fmt: skip
    yield Family("qa_model_info", "gauge", "1, with what runs a version as labels.", info)
    version = [Sample(1, {"version": __version__})]
    yield Family("qa_build_info", "gauge", "1, with the server's version as a label.", version)


def model_statistics(metrics: ModelMetrics) -> ModelStatistics:
    """The counts of the `nv_*` metrics as the Open Inference Protocol's statistics."""
    outcomes = metrics.model_requests_total
    failures = {reason: sum(outcomes[code] for code in codes) for reason, codes in REASONS.items()}
    run = round(metrics.batch_size.sum)
    return ModelStatistics(
        inference_count=run,
        execution_count=metrics.batches_total,
        success=_duration(outcomes[ANSWERED], metrics.request_ms.sum),
        fail=StatisticDuration(sum(failures.values())),
        queue=_duration(run, metrics.queue_ms.sum),
        compute_input=_duration(run, metrics.member_ms["tokenize"]),
        compute_infer=_duration(run, metrics.member_ms["model"]),
        compute_output=_duration(run, metrics.member_ms["read"]),
        failures=failures,
        cache_hits=metrics.cache_hits_total,
        cache_misses=metrics.cache_misses_total,
    )


def _duration(count: int, total_ms: float) -> StatisticDuration:
    return StatisticDuration(count, round(total_ms * 1e6))


_TRITON: dict[str, tuple[str, Callable[[ModelStatistics], float]]] = {
    "cache_num_hits_per_model": ("Requests answered from the cache.", lambda done: done.cache_hits),
    "cache_num_misses_per_model": ("Requests that the cache did not have.",
                                   lambda done: done.cache_misses),
    "inference_request_success": ("Requests answered.", lambda done: done.success.count),
    "inference_count": ("Requests run by the model.", lambda done: done.inference_count),
    "inference_exec_count": ("Batches run by the model.", lambda done: done.execution_count),
    "inference_request_duration_us": ("Time of requests, in microseconds.",
                                      lambda done: done.success.ns // 1000),
    "inference_queue_duration_us": ("Time of requests in the queue, in microseconds.",
                                    lambda done: done.queue.ns // 1000),
    "inference_compute_input_duration_us": ("Time of requests for tokenizing, in microseconds.",
                                            lambda done: done.compute_input.ns // 1000),
    "inference_compute_infer_duration_us": ("Time of requests in the model, in microseconds.",
                                            lambda done: done.compute_infer.ns // 1000),
    "inference_compute_output_duration_us": (
        "Time of requests for reading the answers, in microseconds.",
        lambda done: done.compute_output.ns // 1000),
}  # fmt: skip


def _triton(versions: Sequence[ModelReport]) -> Iterator[Family]:
    for name, (text, figure) in _TRITON.items():
        samples = [Sample(figure(one.statistics), _labels(one)) for one in versions]
        yield Family(f"nv_{name}", "counter", text, samples)
    failures = [
        Sample(count, {**_labels(one), "reason": reason})
        for one in versions
        for reason, count in one.statistics.failures.items()
    ]
    yield Family("nv_inference_request_failure", "counter", "Requests that failed.", failures)
    waiting = [Sample(one.queue_length, _labels(one)) for one in versions]
    text = "Requests waiting for an instance."
    yield Family("nv_inference_pending_request_count", "gauge", text, waiting)


_VERSIONS: dict[str, tuple[str, Callable[[ModelReport], float]]] = {
    "ready": ("Whether a version takes requests.", lambda one: int(one.is_ready)),
    "instances": ("Instances of a version that can take batches.", lambda one: one.alive),
    "memory_bytes": ("Memory of a version's instances when they were ready, with what "
                     "static shapes may add.",
                     lambda one: one.memory_bytes),
    "traffic_share": ("A version's share of the requests that name none, 0 to 1.",
                      lambda one: one.share),
    "failed_loads": ("Failures to load a version since it was last loaded.",
                     lambda one: one.failed_loads),
}  # fmt: skip


def time_families(
    loop_times: Mapping[str, float], sessions: Sequence[Mapping[str, Any]]
) -> Iterator[Family]:
    """Where the time of the loop and of the instances goes, by those parts of a `stats` report."""
    text = "Time of the loop's thread: on a core, and waiting for events, in seconds."
    samples = [Sample(value, {"activity": name}) for name, value in loop_times.items()]
    yield Family("qa_loop_seconds_total", "counter", text, samples)
    text = "Time of an instance by activity, in seconds; `ready` is all of it."
    samples = [
        Sample(value, {
            "model": one["model"], "version": str(one["version"]),
            "instance": str(one["session"]), "activity": name,
        })
        for one in sessions
        for name, value in one["seconds"].items()
    ]  # fmt: skip
    yield Family("qa_instance_seconds_total", "counter", text, samples)


def _labels(one: ModelReport) -> Labels:
    return {"model": one.name, "version": one.version}


def _histogram(name: str, histogram: Histogram) -> Family:
    if not name.endswith("_ms"):
        samples = histogram_samples(histogram.buckets(), histogram.sum, {})
        return Family(f"qa_{name}", "histogram", HELP[name], samples)
    samples = duration_samples(histogram, {})
    return Family(f"qa_{name.removesuffix('_ms')}_seconds", "histogram", HELP[name], samples)


def duration_samples(histogram: Histogram, labels: Labels) -> list[Sample]:
    """The samples, in seconds, of a histogram in milliseconds with `DURATION_BOUNDS_MS`.

    Of each decade's ten bounds, from 0.1 ms up, about 1, 2 and 5 are kept.
    """
    count, kept = 0, []
    for number, (bound_ms, values) in enumerate(histogram.buckets()):
        count += values
        if (number >= 10 and number % 10 in {0, 3, 7}) or math.isinf(bound_ms):
            kept.append((bound_ms / 1e3, count))
            count = 0
    return histogram_samples(kept, histogram.sum / 1e3, labels)


def process_families() -> Iterator[Family]:
    """Metrics of the loop's process, without the workers, named as in Prometheus' client libraries.

    They are read from /proc, which never waits for a disk.
    """
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks, start_ticks = (int(after_name[i]) for i in (11, 12, 19))
    virtual_bytes, resident_pages = int(after_name[20]), int(after_name[21])
    lines = Path("/proc/stat").read_text().splitlines()
    boot_s = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    figures = {
        "cpu_seconds_total": ("Processor time, in seconds.",
                              (user_ticks + system_ticks) / TICKS_PER_S),
        "resident_memory_bytes": ("Memory in use, in bytes.", resident_pages * PAGE_BYTES),
        "virtual_memory_bytes": ("Address space in use, in bytes.", virtual_bytes),
        "start_time_seconds": ("When it started, in seconds since 1970.",
                               boot_s + start_ticks / TICKS_PER_S),
        "max_fds": ("File descriptors it may have open.",
                    resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }  # fmt: skip
    if open_fds := Path("/proc/self/fd").stat().st_size:  # 0 before Linux 6.2
        figures["open_fds"] = "File descriptors it has open.", open_fds
    for name, (text, value) in figures.items():
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield Family(f"process_{name}", kind, text, [Sample(value, {})])
