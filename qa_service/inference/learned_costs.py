"""What batches cost, kept true by every batch that runs.

The start's table is timed once, in a few seconds that may have been busy ones. From then on each
run of the model is a measurement. A Kalman filter follows, for each cell of the table, the
logarithm of what the cell costs as a share of the start's (R. E. Kalman, 1960; recursive least
squares with forgetting is its simplest case):

* Cells are correlated: all of them, for a machine becomes slower as a whole, and those near in
  length and size the more. So what never runs follows what does.
* What is not seen again becomes uncertain in time. Now and then the table says, for a run or a few,
  what could be true just as well of rows together, so that requests that wait anyway run alone or
  together for once; else a table that wrongly refuses or prefers batches would never be found out.
* A run that differs by far more than is likely counts as a bad measurement: one that the kernel
  held up changes nothing; a machine that has become slower is believed after some tens of runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from qa_service.scheduling.batch_cost import CostTable

FloatArray = npt.NDArray[np.float64]

NOISE = 0.1
"""By what share runs of one shape differ; it, and what follows, as standard deviations."""
MACHINE = 0.5
"""By how much the machine may be faster or slower than at the start."""
CELL = 0.35
"""By how much a cell may differ from that; twice this is a factor of two."""
FORGETTING = 1 / 8192
"""How much of what a run says is forgotten with the next."""
SUSPICIOUS = 2.0
"""A run that differs by more standard deviations than is expected is thought a bad measurement."""
SHARPNESS = 5.0
"""A cell a doubling away says 2 to this power less of a batch."""
TABLE_EVERY = 16
"""After so many runs there is a new table."""
TRIAL_EVERY, TRIAL_RUNS = 64, 4
"""How often there is a trial, and for how many runs if nothing comes of it."""
DOUBT = 2.0
"""By how many standard deviations a trial's table differs from what is believed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt at batches of another size than ran last.

    Attributes:
        rows: What ran last.
        is_larger: Whether larger ones are tried, up to the table's next size, or smaller ones.
    """

    rows: int
    is_larger: bool

    def has_run(self, rows: int) -> bool:
        """Whether a run of so many rows is what was to be tried."""
        return rows > self.rows if self.is_larger else rows < self.rows

    def num_sizes(self, sizes: Sequence[int]) -> int | None:
        """How many of the table's sizes are offered; None for all."""
        return bisect_right(sizes, self.rows) + 1 if self.is_larger else None


class LearnedCosts:
    """Follows what a model costs.

    Args:
        start: What was measured at the start.

    Attributes:
        table: What batches cost, as of the last few runs.
    """

    def __init__(self, start: CostTable) -> None:
        self.table = start
        self._start = start
        rows = list(zip(start.lengths, start.costs_ms, strict=True))
        cells = [
            (length, size, start.batch_sizes[len(row) - 1])
            for length, row in rows
            for size in start.batch_sizes[: len(row)]
        ]
        self._lengths, self._sizes, self._last_sizes = np.log2(np.array(cells, float)).T
        self._start_ms = np.array([ms for _, row in rows for ms in row])
        self._ends = np.cumsum([len(row) for _, row in rows])[:-1]
        self._firsts = np.flatnonzero(self._sizes == 0.0).repeat([len(row) for _, row in rows])
        apart = _apart(self._lengths, self._sizes, self._lengths[:, None], self._sizes[:, None])
        self._unknown = MACHINE**2 + CELL**2 * np.exp2(-apart)
        self._covariance = self._unknown
        self._shares = np.zeros(len(cells))
        """Logarithms."""
        self._num_runs = 0
        self._trial: Trial | None = None

    def observe(self, rows: int, tokens: int, took_ms: float) -> None:
        """Follows what a run of the model took.

        Args:
            rows: How many there were.
            tokens: Of each, padding included.
            took_ms: How long the model took.
        """
        if took_ms <= 0.0:
            return
        weights = self._weights(rows, tokens)
        expected_ms = self._start.cost_ms(rows, tokens) * math.exp(weights @ self._shares)
        surprise = math.log(took_ms / expected_ms)
        covariance = self._covariance + FORGETTING * (self._unknown - self._covariance)
        to_batch = covariance @ weights
        known = float(weights @ to_batch)
        noise = NOISE**2
        noise *= max(1.0, surprise**2 / (SUSPICIOUS**2 * (known + noise)))
        gain = to_batch / (known + noise)
        self._shares = self._shares + gain * surprise
        self._covariance = covariance - np.outer(gain, to_batch)
        if self._plan_trial(rows) or self._num_runs % TABLE_EVERY == 0:
            self.table = self._table()

    def _plan_trial(self, rows: int) -> bool:
        """Begins a trial of larger or smaller batches than just ran, or ends one; else False."""
        self._num_runs += 1
        count, since = divmod(self._num_runs, TRIAL_EVERY)
        if since == 0:
            self._trial = Trial(rows, is_larger=rows == 1 or count % 2 == 0)
        elif self._trial and (self._trial.has_run(rows) or since == TRIAL_RUNS):
            self._trial = None
        else:
            return False
        return True

    def _weights(self, rows: int, tokens: int) -> FloatArray:
        """How much each cell says of such a batch; they add up to 1."""
        length = min(max(math.log2(tokens), self._lengths[0]), self._lengths[-1])
        size = np.minimum(math.log2(rows), self._last_sizes)
        apart = _apart(self._lengths, self._sizes, length, size)
        weights: FloatArray = np.exp2(-SHARPNESS * apart)
        weights /= weights.sum()
        return weights

    def _table(self) -> CostTable:
        pace = self._shares.mean()
        shares = self._shares - pace
        if self._trial:
            shares = shares + (-DOUBT if self._trial.is_larger else DOUBT) * self._doubts()
        costs_ms = np.split(self._start_ms * np.exp(shares), self._ends)
        end = self._trial.num_sizes(self._start.batch_sizes) if self._trial else None
        return msgspec.structs.replace(
            self._start,
            costs_ms=tuple(tuple(row.tolist()[:end]) for row in costs_ms),
            pace=math.exp(pace),
        )

    def _doubts(self) -> FloatArray:
        """How uncertain each cell is in comparison with a row alone, as standard deviations."""
        variances = self._covariance.diagonal()
        beside = self._covariance[np.arange(len(self._firsts)), self._firsts]
        return np.sqrt(np.maximum(0.0, variances + variances[self._firsts] - 2 * beside))


def _apart(
    lengths: FloatArray, sizes: FloatArray, length: FloatArray | float, size: FloatArray
) -> FloatArray:
    """How many doublings of length and size are between batches."""
    return abs(lengths - length) + abs(sizes - size)
