"""Counters and histograms, kept by the loop and read by a `stats` request.

To count is an addition; to observe is a bisection and two. Nothing is computed, sorted or
allocated until someone asks. Names follow Prometheus (`_total` counts up for ever), units are
in them (`_ms`), and `docs/PROTOCOL.md` has the table of them all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qa_service.reading.stopwatch import StagesMs

ANSWERED = "answered"
ABANDONED = "abandoned"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SMOOTHING = 1 / 8
MAX_RETRY_AFTER_MS = 10_000
UNMEASURED_RETRY_AFTER_MS = 1_000


def log_spaced(least: float, most: float, per_decade: int) -> tuple[float, ...]:
    """Bounds that divide each decade evenly on a logarithmic scale, to three digits.

    Ten a decade are the preferred numbers R10 of ISO 3: 1, 1.26, 1.58, 2, 2.51, ...
    """
    first = round(math.log10(least) * per_decade)
    last = round(math.log10(most) * per_decade)
    return tuple(float(f"{10 ** (k / per_decade):.3g}") for k in range(first, last + 1))


DURATION_BOUNDS_MS = log_spaced(0.01, 100_000, per_decade=10)
"""From a hundredth of a millisecond to a hundred seconds; neighbours are 26 % apart."""

BATCH_SIZE_BOUNDS = (*map(float, range(1, 17)), *map(float, (20, 25, 32, 40, 50, 64, 128, 256)))
"""Every size up to 16, then fewer and fewer."""


class Histogram:
    """How often a figure fell between which bounds.

    A value counts in the first bucket whose upper bound is not below it, and above all bounds
    in one more, as in Prometheus.

    Args:
        bounds: The buckets' upper bounds, ascending.
        step: What values and bounds are multiples of; 0 if they can be anything.
    """

    __slots__ = ("_bounds", "_counts", "_max", "_step", "_sum")

    def __init__(self, bounds: Sequence[float], step: float = 0.0) -> None:
        self._bounds = bounds
        self._step = step
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._max = 0.0

    def observe(self, value: float) -> None:
        """Counts a value, not below 0."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if value > self._max:  # noqa: PLR1730 - max() costs as much as all the rest
            self._max = value

    def quantile(self, fraction: float) -> float | None:
        """Estimates the value that this fraction of all values do not exceed; None without any.

        By the rule of Prometheus' `histogram_quantile`: the bucket that holds the value of rank
        `fraction * count` is found, and its values are taken to be spread evenly over it. Two
        things are better known here: no value is over the greatest one seen, which therefore
        ends the last bucket too, and none is less than a step over the bucket below. So the
        estimate lies in the bucket of the true value: durations from 0.01 ms to 100 s are at most
        26 % off, and batch sizes up to 16 exact.
        """
        held = self._held()
        return self._estimate(held, fraction * sum(held.values())) if held else None

    def report(self) -> dict[str, object]:
        """Count, sum, maximum, estimated quantiles and the buckets that hold anything.

        A bucket is `[upper bound, how many values]`, each value in one bucket only; the bound
        is None for the last.
        """
        held = self._held()
        if not held:
            return {"count": 0, "sum": 0.0, "max": None, **dict.fromkeys(QUANTILES), "buckets": []}
        count = sum(held.values())
        bounds = (*self._bounds, None)
        return {
            "count": count,
            "sum": round(self._sum, 3),
            "max": round(self._max, 3),
            **{name: round(self._estimate(held, q * count), 3) for name, q in QUANTILES.items()},
            "buckets": [(bounds[number], values) for number, values in held.items()],
        }

    def _held(self) -> dict[int, int]:
        """The buckets that hold anything: number and count, in order."""
        return {number: count for number, count in enumerate(self._counts) if count}

    def _estimate(self, held: Mapping[int, int], rank: float) -> float:
        """The value of that rank, of at most all; see `quantile`."""
        below = 0
        for number, count in held.items():
            if below + count >= rank:
                lower = self._step + (self._bounds[number - 1] if number else 0.0)
                upper = min((*self._bounds[number : number + 1], self._max))
                return min(upper, lower + (upper - lower) * max(0.0, rank - below) / count)
            below += count
        return self._max


class ServiceTime:
    """What a request costs a session, as recent batches had it.

    The smoothed time of a batch over the smoothed size of one: exponentially weighted means, in
    which each new batch weighs `SMOOTHING`, as TCP smooths its round-trip time (RFC 6298).
    """

    __slots__ = ("_batch_ms", "_batch_size")

    def __init__(self) -> None:
        self._batch_ms = 0.0
        self._batch_size = 0.0

    def observe(self, batch_size: int, inference_ms: float) -> None:
        """Counts a batch that a session has answered."""
        weight = SMOOTHING if self._batch_size else 1.0
        self._batch_ms += weight * (inference_ms - self._batch_ms)
        self._batch_size += weight * (batch_size - self._batch_size)

    def retry_after_ms(self, queue_length: int, sessions_alive: int) -> int:
        """When a refused request may be sent again: once all that waits now has been taken.

        That is `queue_length * ms per request / sessions_alive`, by Little's law the time that
        a queue of this length takes to pass, rounded up and kept within 1 to
        `MAX_RETRY_AFTER_MS`. Before the first batch it is `UNMEASURED_RETRY_AFTER_MS`; while no
        session is alive, the most.
        """
        if not sessions_alive:
            return MAX_RETRY_AFTER_MS
        if not self._batch_size:
            return UNMEASURED_RETRY_AFTER_MS
        wait_ms = queue_length * self._batch_ms / self._batch_size / sessions_alive
        return max(1, min(math.ceil(wait_ms), MAX_RETRY_AFTER_MS))


class Metrics:
    """Everything that is counted; the attributes are the metrics' names.

    Args:
        error_codes: The outcomes a request can have, besides being answered or abandoned.
        queries: The kinds of request that ask about the server.
    """

    def __init__(self, error_codes: Iterable[str], queries: Iterable[str]) -> None:
        self.requests_total = dict.fromkeys((ANSWERED, *error_codes, ABANDONED), 0)
        self.request_retries_total = 0
        self.queries_total = dict.fromkeys(queries, 0)
        self.batches_total = 0
        self.session_restarts_total = 0
        self.connections_accepted_total = 0
        self.listener_rests_total = 0
        self.queue_ms = Histogram(DURATION_BOUNDS_MS)
        self.request_ms = Histogram(DURATION_BOUNDS_MS)
        self.batch_size = Histogram(BATCH_SIZE_BOUNDS, step=1.0)
        self.inference_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_tokenize_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_model_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_read_ms = Histogram(DURATION_BOUNDS_MS)
        self.service_time = ServiceTime()

    def count_batch(self, size: int, inference_ms: float, stages_ms: StagesMs) -> None:
        """Counts a batch that a session has answered, and where its time went."""
        self.batches_total += 1
        self.batch_size.observe(size)
        self.inference_ms.observe(inference_ms)
        self.inference_tokenize_ms.observe(stages_ms.tokenize)
        self.inference_model_ms.observe(stages_ms.model)
        self.inference_read_ms.observe(stages_ms.read)
        # Without what other batches took between the steps of a long text.
        own_ms = stages_ms.tokenize + stages_ms.model + stages_ms.read
        self.service_time.observe(size, own_ms)

    def report(self, gauges: Mapping[str, float]) -> dict[str, object]:
        """Everything by name, as a `stats` request is answered.

        Args:
            gauges: What is not counted but stands as it is now.
        """
        values = vars(self)
        return {
            "counters": {k: v for k, v in values.items() if isinstance(v, int | dict)},
            "gauges": dict(gauges),
            "histograms": {k: v.report() for k, v in values.items() if isinstance(v, Histogram)},
        }
