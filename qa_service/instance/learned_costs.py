"""Corrects the cost table with every batch that runs.

The start estimates its table, or measures it in a few seconds, in which the machine may have been
busy. From then on each run of the model is a measurement. A Kalman filter tracks, for each cell of
the table, the logarithm of its cost as a share of the start's (R. E. Kalman, 1960; its simplest
case is recursive least squares with forgetting):

* All cells are correlated, since a machine becomes slower as a whole, and cells near in length and
  size more so. So shapes that never run follow those that do.
* A cell that does not run becomes uncertain in time. Now and then a trial table, within that
  uncertainty, makes requests run alone or together that otherwise would not; without trials, a
  table that wrongly refuses or prefers batches would never be corrected.
* The table holds costs relative to each other, its pace relates them to the start's. A turn's
  minimum cost never changes: so no client pays more because it was queued before a correction.
* A run that differs far more than is likely counts as a bad measurement: one run that the kernel
  delayed changes almost nothing; a machine that became slower is believed after some tens of runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from qa_service.instance.batch_cost import MIN_TURN_TOKENS, CostTable
from qa_service.instance.model_folder.costs_dir import keep

KEPT_AFTER_RUNS = 512
"""Of the model: seconds of a server that is asked all the time."""
FloatArray = npt.NDArray[np.float64]

NOISE = 0.1
"""By what share runs of one shape differ; this and the next two are standard deviations."""
MACHINE = 0.5
"""By what share the whole machine may be faster or slower than at the start."""
CELL = 0.35
"""By what share a cell may differ from the machine; two deviations are a factor of two."""
FORGETTING = 1 / 8192
"""The share of a run's information that the next run discards."""
SUSPICIOUS = 2.0
"""A run that differs by more standard deviations counts as a bad measurement."""
SHARPNESS = 5.0
"""A cell's weight in a batch's cost falls by 2 to this power for each doubling between them."""
TABLE_EVERY = 16
"""A new table is made after this many runs."""
TRIAL_EVERY, TRIAL_RUNS = 64, 4
"""Runs from one trial to the next, and runs after which an unused trial ends."""
DOUBT = 2.0
"""Standard deviations by which a trial's table differs from the estimate."""


def keep_learned(path: Path, learned: LearnedCosts) -> None:
    """Keeps a table once it has been learned from `KEPT_AFTER_RUNS` runs, unless one is kept."""
    if learned.num_runs == KEPT_AFTER_RUNS and not path.exists():
        keep(path, learned.in_full())


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt at batches larger than the `rows` that ran last, or smaller."""

    rows: int
    is_larger: bool

    def has_run(self, rows: int) -> bool:
        return rows > self.rows if self.is_larger else rows < self.rows


class LearnedCosts:
    """Tracks a model's costs.

    Attributes:
        table: At most `TABLE_EVERY` runs old.
        num_runs: How many runs it has learned from.
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
        length = max(0, bisect_right(start.lengths, MIN_TURN_TOKENS) - 1)
        self._turn = np.flatnonzero(self._sizes == 0.0)[length]
        """The cell whose cost is a turn's minimum."""
        self.num_runs = 0
        self._trial: Trial | None = None

    def observe(self, rows: int, tokens: int, took_ms: float) -> None:
        """Updates the costs with a run of the model; `tokens` is each row's, padding included."""
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
        if self._plan_trial(rows) or self.num_runs % TABLE_EVERY == 0:
            self.table = self._table()

    def in_full(self) -> CostTable:
        """The costs as they are learned by now, without a trial and without a pace."""
        costs_ms = np.split(self._start_ms * np.exp(self._shares), self._ends)
        return msgspec.structs.replace(
            self._start, costs_ms=tuple(tuple(row.tolist()) for row in costs_ms), pace=1.0
        )

    def _plan_trial(self, rows: int) -> bool:
        """Starts or ends a trial of larger or smaller batches than just ran; whether it did."""
        self.num_runs += 1
        count, since = divmod(self.num_runs, TRIAL_EVERY)
        if since == 0:
            self._trial = Trial(rows, is_larger=rows == 1 or count % 2 == 0)
        elif self._trial and (self._trial.has_run(rows) or since == TRIAL_RUNS):
            self._trial = None
        else:
            return False
        return True

    def _weights(self, rows: int, tokens: int) -> FloatArray:
        """The weight of each cell in a batch's cost; they add up to 1."""
        length = min(max(math.log2(tokens), self._lengths[0]), self._lengths[-1])
        size = np.minimum(math.log2(rows), self._last_sizes)
        apart = _apart(self._lengths, self._sizes, length, size)
        weights: FloatArray = np.exp2(-SHARPNESS * apart)
        weights /= weights.sum()
        return weights

    def _table(self) -> CostTable:
        pace = self._shares[self._turn]
        shares = self._shares - pace
        if self._trial:
            # Of each cell relative to a row alone, as standard deviations.
            variances = self._covariance.diagonal()
            covariances = self._covariance[np.arange(len(self._firsts)), self._firsts]
            apart = np.maximum(0.0, variances + variances[self._firsts] - 2 * covariances)
            shares = shares + (-DOUBT if self._trial.is_larger else DOUBT) * np.sqrt(apart)
        costs_ms = np.split(self._start_ms * np.exp(shares), self._ends)
        end = None
        if self._trial and self._trial.is_larger:  # no larger than the next of the table's sizes
            end = bisect_right(self._start.batch_sizes, self._trial.rows) + 1
        return msgspec.structs.replace(
            self._start,
            costs_ms=tuple(tuple(row.tolist()[:end]) for row in costs_ms),
            pace=math.exp(pace),
        )


def _apart(
    lengths: FloatArray, sizes: FloatArray, length: FloatArray | float, size: FloatArray
) -> FloatArray:
    """The distance between batches, in doublings of length and of size."""
    return abs(lengths - length) + abs(sizes - size)
