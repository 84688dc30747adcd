"""A histogram: what `stats` reports and `/metrics` exposes of many values.

To observe a value is a bisection and two additions; nothing is computed until someone asks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def log_spaced(minimum: float, maximum: float, per_decade: int) -> tuple[float, ...]:
    """Bounds that divide each decade evenly on a logarithmic scale, to three digits.

    Ten a decade are the preferred numbers R10 of ISO 3: 1, 1.26, 1.58, 2, 2.51, ...
    """
    first = round(math.log10(minimum) * per_decade)
    last = round(math.log10(maximum) * per_decade)
    return tuple(float(f"{10 ** (k / per_decade):.3g}") for k in range(first, last + 1))


class Histogram:
    """Counts values in buckets.

    As in Prometheus, a value counts in the first bucket whose upper bound is not below it; the last
    bucket has no bound.

    Args:
        bounds: The buckets' upper bounds, ascending.
        step: Values and bounds are multiples of it; 0 if they can be anything.
    """

    __slots__ = ("_bounds", "_counts", "_max", "_step", "sum")

    def __init__(self, bounds: Sequence[float], step: float = 0.0) -> None:
        self._bounds = bounds
        self._step = step
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._max = 0.0

    def observe(self, value: float) -> None:
        """Counts a value, not below 0."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        if value > self._max:  # noqa: PLR1730 - max() costs as much as all the rest
            self._max = value

    def buckets(self) -> Iterable[tuple[float, int]]:
        """Each bucket's upper bound, infinity for the last, and its number of values."""
        return zip((*self._bounds, math.inf), self._counts, strict=True)

    def quantile(self, fraction: float) -> float | None:
        """Estimates the value that this fraction of all values do not exceed; None without any.

        As Prometheus' `histogram_quantile`, it finds the bucket of the value of rank
        `fraction * count`, and takes the bucket's values to be spread evenly. In addition, no value
        exceeds the maximum seen, and each is at least a step over the bucket below. So the estimate
        lies in the bucket of the true value: durations from 0.01 ms to 100 s are at most 26 % off,
        and batch sizes up to 16 exact.
        """
        rank, below = fraction * sum(self._counts), 0
        for number, count in enumerate(self._counts):
            if count and below + count >= rank:
                lower = self._step + (self._bounds[number - 1] if number else 0.0)
                upper = min((*self._bounds[number : number + 1], self._max))
                above = 1 - max(0.0, rank - below) / count
                return min(upper, max(lower, upper - (upper - lower) * above))
            below += count
        return self._max if below else None

    def report(self) -> dict[str, object]:
        """Count, sum, maximum, estimated quantiles and the buckets that hold values.

        A bucket is `[upper bound, number of values]`, not cumulative; the last bound is None.
        """
        count, bounds = sum(self._counts), (*self._bounds, None)
        quantiles = {name: self.quantile(fraction) for name, fraction in QUANTILES.items()}
        return {
            "count": count,
            "sum": round(self.sum, 3),
            "max": round(self._max, 3) if count else None,
            **{name: its if its is None else round(its, 3) for name, its in quantiles.items()},
            "buckets": [(bounds[i], values) for i, values in enumerate(self._counts) if values],
        }

    def merge(self, other: Histogram) -> None:
        """Adds the values of another, which has the same bounds."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.sum += other.sum
        self._max = max(self._max, other._max)
