"""Counters, histograms and the service time: what they say against what is true."""

import math
import re
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.server import ROOT
from qa_service.errors import ERROR_KINDS
from qa_service.instance.stages import StagesMs
from qa_service.server.telemetry.exposition import REASONS
from qa_service.server.telemetry.metrics import (
    ABANDONED,
    ANSWERED,
    BATCH_SIZE_BOUNDS,
    DURATION_BOUNDS_MS,
    Metrics,
)
from qa_service.wire.histogram import QUANTILES, Histogram, log_spaced
from qa_service.wire.messages import QUERY_TYPES

FRACTIONS = [*QUANTILES.values(), 0.001, 1.0]
durations_ms = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)
sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=200)


def histogram_of(values, bounds=DURATION_BOUNDS_MS, step=0.0):
    histogram = Histogram(bounds, step)
    for value in values:
        histogram.observe(value)
    return histogram


def true_quantile(values, fraction):
    """The smallest value that this many of all do not exceed."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]


def bucket_of(value, bounds):
    number = bisect_left(bounds, value)
    lower = bounds[number - 1] if number else 0.0
    return lower, bounds[number] if number < len(bounds) else math.inf


class TestBounds:
    @pytest.mark.parametrize("bounds", [DURATION_BOUNDS_MS, BATCH_SIZE_BOUNDS])
    def test_histogram_bounds_ascend(self, bounds):
        assert all(a < b for a, b in pairwise(bounds))

    def test_a_decade_has_as_many_as_asked(self):
        assert log_spaced(1, 100, per_decade=1) == (1, 10, 100)
        assert log_spaced(1, 10, per_decade=3) == (1, 2.15, 4.64, 10)


class TestHistogram:
    @given(durations_ms, st.sampled_from(FRACTIONS))
    def test_an_estimate_lies_in_the_bucket_of_the_truth(self, values, fraction):
        true = true_quantile(values, fraction)
        estimate = histogram_of(values).quantile(fraction)
        lower, upper = bucket_of(true, DURATION_BOUNDS_MS)
        assert lower <= estimate <= min(upper, max(values))

    @given(st.lists(st.integers(1, 16), min_size=1), st.sampled_from(FRACTIONS))
    def test_small_batch_sizes_are_exact(self, values, fraction):
        histogram = histogram_of(values, BATCH_SIZE_BOUNDS, step=1.0)
        assert histogram.quantile(fraction) == true_quantile(values, fraction)

    @given(sizes, st.sampled_from(FRACTIONS))
    def test_any_batch_size_lies_in_its_bucket(self, values, fraction):
        histogram = histogram_of(values, BATCH_SIZE_BOUNDS, step=1.0)
        lower, upper = bucket_of(true_quantile(values, fraction), BATCH_SIZE_BOUNDS)
        assert lower < histogram.quantile(fraction) <= min(upper, max(values))

    @given(durations_ms)
    def test_estimates_do_not_fall_as_the_fraction_grows(self, values):
        histogram = histogram_of(values)
        estimates = [histogram.quantile(k / 20) for k in range(1, 21)]
        assert estimates == sorted(estimates)
        assert estimates[-1] == max(values)

    @given(durations_ms)
    def test_the_report_holds_every_value_once(self, values):
        histogram = histogram_of(values)
        report = histogram.report()
        for name, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            assert report[name] == round(histogram.quantile(fraction), 3)
        assert report["count"] == len(values) == sum(held for _, held in report["buckets"])
        assert report["sum"] == pytest.approx(sum(values), abs=0.001)
        assert report["max"] == pytest.approx(max(values), abs=0.001)
        for bound, held in report["buckets"]:
            assert held == sum(bucket_of(v, DURATION_BOUNDS_MS)[1] == (bound or math.inf)
                               for v in values)  # fmt: skip

    def test_a_value_on_a_bound_counts_below_it(self):
        assert histogram_of([1, 2, 2.5], (1, 2, 3)).report()["buckets"] == [(1, 1), (2, 1), (3, 1)]

    def test_a_value_over_all_bounds_has_a_bucket(self):
        histogram = histogram_of([5, 9], (1, 2))
        assert histogram.report()["buckets"] == [(None, 2)]
        assert histogram.quantile(1.0) == 9

    def test_an_empty_histogram_reports_no_quantile(self):
        assert Histogram((1, 2)).report() == {
            "count": 0, "sum": 0, "max": None, "p50": None, "p90": None, "p99": None, "buckets": []
        }  # fmt: skip

    def test_quantile_interpolates_as_prometheus_does(self):
        # Ten values in (0, 10] and ten in (10, 20]: the 15th is taken to be halfway.
        histogram = histogram_of([10] * 10 + [20] * 10, (10, 20))
        assert histogram.quantile(0.75) == 15
        assert histogram.quantile(0.25) == 5


def report(metrics, **gauges):
    return metrics.report(gauges)


class TestMetrics:
    def test_every_outcome_is_reported_from_the_start(self):
        counters = report(Metrics(ERROR_KINDS, QUERY_TYPES))["counters"]
        assert set(counters["requests_total"]) == {ANSWERED, ABANDONED, *ERROR_KINDS}
        assert counters["queries_total"] == dict.fromkeys(QUERY_TYPES, 0)

    def test_a_batch_is_counted_in_every_metric_of_batches(self):
        metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        batch = (3, 10.0, StagesMs(tokenize=1.0, model=8.0, read=0.5))
        metrics.for_version("builtin", 1).count_batch(*batch)
        stats = report(metrics, queue_length=5)
        assert stats["gauges"] == {"queue_length": 5}
        assert stats["counters"]["batches_total"] == 1
        sums = {name: h["sum"] for name, h in stats["histograms"].items() if h["count"]}
        assert sums == {
            "batch_size": 3,
            "inference_ms": 10,
            "inference_tokenize_ms": 1,
            "inference_model_ms": 8,
            "inference_read_ms": 0.5,
        }

    def test_a_version_that_ends_stays_in_the_sums(self):
        metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        before = {}
        for version in (1, 2):
            counted = metrics.for_version("builtin", version)
            counted.count_batch(version, 10.0, StagesMs(1.0, 8.0, 0.5))
            counted.model_requests_total[ANSWERED] += version
            before = report(metrics)
            metrics.end_version("builtin", version)
            assert report(metrics) == before
        assert before["counters"]["batches_total"] == 2
        assert before["histograms"]["batch_size"]["sum"] == 3

    def test_every_metric_is_documented(self):
        page = (ROOT / "docs" / "PROTOCOL.md").read_text()
        stats = report(Metrics(ERROR_KINDS, QUERY_TYPES))
        for name in (*stats["counters"], *stats["histograms"]):
            assert re.search(rf"^\| `{name}` \| \w", page, re.MULTILINE), name


NO_REQUEST = {
    "frame_too_large", "invalid_frame", "unauthorized", "forbidden", "tls_required",
    "frame_timeout", "invalid_http",
}  # fmt: skip
"""The codes of messages that never were requests."""


@pytest.mark.parametrize("code", ERROR_KINDS)
def test_a_failed_request_is_counted_under_one_of_tritons_reasons(code):
    reasons = [reason for reason, codes in REASONS.items() if code in codes]
    assert len(reasons) == (0 if code in NO_REQUEST else 1)
