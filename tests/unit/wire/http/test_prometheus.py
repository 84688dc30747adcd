"""Prometheus' text, line by line, and what the metrics become in it."""

import math
import re

import pytest

from harness.server import ROOT
from qa_service.errors import ERROR_KINDS
from qa_service.instance.stages import StagesMs
from qa_service.server.telemetry.exposition import (
    HELP,
    families,
    model_statistics,
    process_families,
    time_families,
)
from qa_service.server.telemetry.metrics import ABANDONED, ANSWERED, Metrics
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.sidecars.gpu_meter import GpuReading, gpu_families
from qa_service.wire.http.model_reports import ModelReport
from qa_service.wire.http.prometheus import Family, Sample, histogram_samples, write_text
from qa_service.wire.messages import QUERY_TYPES

GAUGES = ("connections_open", "requests_in_flight", "queue_length", "sessions_alive",
          "sessions_wanted", "cache_bytes", "cache_entries", "reload_failed")  # fmt: skip
LABELS = ("builtin", "1")


@pytest.fixture
def metrics():
    return Metrics(ERROR_KINDS, QUERY_TYPES)


def families_of(metrics, **more):
    """Those of a server with one version of a model."""
    statistics = model_statistics(metrics.for_version("builtin", 1))
    report = ModelReport(*LABELS, "onnx", "READY", True, "", 2, 0, statistics=statistics, **more)
    return families(metrics, dict.fromkeys(GAUGES, 0), [report])


def sampled(metrics, **more):
    """Every sample by its name and labels."""
    found = {}
    for family in families_of(metrics, **more):
        for sample in family.samples:
            key = (family.name + sample.suffix, *sample.labels.values())
            assert key not in found
            found[key] = sample.value
    return found


def test_a_family_is_written_in_text_format():
    samples = [Sample(3, {}), Sample(0.5, {"a": 'x"y\\z\n', "b": ""})]
    text = write_text([Family("name", "gauge", "A line.\nAnd \\ another.", samples)])
    assert text.decode() == (
        "# HELP name A line.\\nAnd \\\\ another.\n"
        "# TYPE name gauge\n"
        "name 3\n"
        'name{a="x\\"y\\\\z\\n",b=""} 0.5\n'
    )


def test_a_histogram_counts_what_is_below_each_bound():
    samples = histogram_samples([(0.5, 2), (1.0, 0), (math.inf, 3)], 9.25, {"l": "v"})
    assert write_text([Family("h", "histogram", "H.", samples)]).decode().splitlines()[2:] == [
        'h_bucket{l="v",le="0.5"} 2',
        'h_bucket{l="v",le="1.0"} 2',
        'h_bucket{l="v",le="+Inf"} 5',
        'h_sum{l="v"} 9.25',
        'h_count{l="v"} 5',
    ]


SESSION = {"model": "builtin", "version": 1, "session": 0, "seconds": {"ready": 2.0, "model": 1.5}}


def documented():
    """Type and labels of each metric, from the table of docs/HTTP.md."""
    page = (ROOT / "docs" / "HTTP.md").read_text()
    rows = re.findall(r"^\| (`\w+`.*?) \| (counter|gauge|histogram) \| (.*?)\|", page, re.MULTILINE)
    return {
        name: (kind, re.findall(r"`(\w+)`", labels))
        for names, kind, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_every_metric_is_documented_with_its_type_and_its_labels(metrics):
    counts = ServiceCounts()
    counts.cascade("default").models_asked[1] = 1
    counts.shadow("builtin", 2)
    counts.keep_collections(["handbook"])
    found = {"process_open_fds": ("gauge", [])}  # which a kernel before Linux 6.2 does not tell
    for family in (
        *families_of(metrics),
        *counts.families({"handbook": "READY"}),
        *time_families({"cpu": 1.0, "waiting": 2.0}, [SESSION]),
        *gpu_families([GpuReading("GPU-1", 0.5, 9.0, 2, 1, 3.0, 4.0, 5.0)]),
        *process_families(),
    ):
        [labels] = {tuple(k for k in one.labels if k != "le") for one in family.samples}
        found[family.name] = (family.kind, list(labels))
    assert documented() == found


def test_every_counter_has_a_help_text(metrics):
    assert set(metrics.totals()) == set(HELP)
    assert all(family.help for family in process_families())


def test_a_batchs_time_counts_once_for_each_of_its_requests(metrics):
    stages = StagesMs(tokenize=1.0, model=6.0, read=0.5)
    metrics.for_version("builtin", 1).count_batch(8, 10.0, stages)
    seen = sampled(metrics)
    for name, value in (("count", 8), ("exec_count", 1), ("compute_input_duration_us", 8_000),
                        ("compute_infer_duration_us", 48_000),
                        ("compute_output_duration_us", 4_000)):  # fmt: skip
        assert seen[f"nv_inference_{name}", *LABELS] == value
    assert model_statistics(metrics.for_version("builtin", 1)).compute_infer.ns == 48_000_000


def test_failures_have_tritons_reasons(metrics):
    for outcome in (ANSWERED, "queue_full", ABANDONED, ABANDONED, "worker_crashed", "shutting_down",
                    "invalid_request"):  # fmt: skip
        metrics.for_version("builtin", 1).model_requests_total[outcome] += 1
    seen = sampled(metrics)
    assert seen["nv_inference_request_success", *LABELS] == 1
    failures = {
        reason: seen["nv_inference_request_failure", *LABELS, reason]
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    assert failures == {"REJECTED": 1, "CANCELED": 2, "BACKEND": 1, "OTHER": 2}


def test_gauges_of_a_version_are_reported(metrics):
    seen = sampled(metrics, alive=2, share=0.95, memory_bytes=7, failed_loads=3, queue_length=4)
    expected = {"ready": 1, "instances": 2, "traffic_share": 0.95}
    for name, value in (expected | {"memory_bytes": 7, "failed_loads": 3}).items():
        assert seen[f"qa_model_{name}", *LABELS] == value
    assert seen["nv_inference_pending_request_count", *LABELS] == 4


def test_durations_are_in_seconds_with_few_buckets(metrics):
    for milliseconds in (0.01, 1.0, 3.0, 1e6):
        metrics.for_version("builtin", 1).queue_ms.observe(milliseconds)
    seen = sampled(metrics)
    bounds = {key[1]: value for key, value in seen.items() if key[0] == "qa_queue_seconds_bucket"}
    assert 15 <= len(bounds) <= 25
    assert (bounds["0.0001"], bounds["0.001"], bounds["+Inf"]) == (1, 2, 4)
    assert list(bounds.values()) == sorted(bounds.values())
    assert seen["qa_queue_seconds_count",] == 4


def test_model_info_has_engine_and_precision_labels(metrics):
    assert sampled(metrics, precision="int8")["qa_model_info", *LABELS, "onnx", "int8"] == 1
