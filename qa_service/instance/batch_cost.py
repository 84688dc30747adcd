"""What a batch costs an instance, and so which rows should run together.

No rule of thumb holds everywhere: on a GPU a batch of eight costs little more than one request;
on a CPU core it can cost more than the eight apart, because its activations leave the cache. So
each instance measures its model once, and the scheduler (rows are requests) and the reader (rows
are windows) apply the same rule.

A row joins if it adds less to this batch than it would cost later, in a batch of as many rows as
this one has or as are left. An instance takes no more than its share of the queue, so that no
request shares a batch while an instance is idle. If no more requests came, smaller batches would
lower the mean completion time; under load, throughput matters more
(`tests/unit/server/scheduling/test_batch_sizes.py` simulates it).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.files import read_file

MIN_SAVING = 0.1
"""The minimum share of its later cost that a joining row must save: measurements are noisy."""
MIN_TURN_TOKENS = 512
"""Tokens that a turn costs at least, about a page, whatever the model's window."""


class CostTable(msgspec.Struct, frozen=True):
    """Milliseconds that the model takes for padded batches, at a grid of lengths and batch sizes.

    Attributes:
        lengths: Tokens of a row, ascending.
        batch_sizes: Rows, ascending, from 1.
        costs_ms: For each length, the cost at the first few batch sizes; beyond those it grows in
            proportion to the rows.
        runtime: Library, version and device.
        pace: By what factor batches of any size take longer at present than `costs_ms`.
    """

    lengths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    costs_ms: tuple[tuple[float, ...], ...]
    runtime: str = ""
    pace: float = 1.0

    def __post_init__(self) -> None:
        for axis in (self.lengths, self.batch_sizes):
            if not axis or axis[0] < 1 or list(axis) != sorted(set(axis)):
                raise ValueError(f"lengths and batch sizes must ascend from 1 or more: {axis}")
        rows = [len(row) for row in self.costs_ms]
        if len(rows) != len(self.lengths) or not all(1 <= n <= len(self.batch_sizes) for n in rows):
            raise ValueError("costs_ms needs a row for each length, of one to all batch sizes")
        if self.batch_sizes[0] != 1 or min(map(min, self.costs_ms)) <= 0.0:
            raise ValueError("batch sizes must begin with 1, and all costs be above 0")

    def cost_ms(self, batch_size: int, tokens: int) -> float:
        """Estimates a batch's cost, linear between the points of the grid.

        Beyond the longest length it is in proportion to the longest row's tokens, since a longer
        text is cut into windows.
        """
        upper = bisect_right(self.lengths, tokens)
        if upper == len(self.lengths):
            return self._row_ms(upper - 1, batch_size) * tokens / self.lengths[-1]
        if upper == 0:
            return self._row_ms(0, batch_size)
        below, above = self.lengths[upper - 1], self.lengths[upper]
        share = (tokens - below) / (above - below)
        below_ms = self._row_ms(upper - 1, batch_size)
        return below_ms + share * (self._row_ms(upper, batch_size) - below_ms)

    def _row_ms(self, row: int, batch_size: int) -> float:
        costs_ms = self.costs_ms[row]
        upper = bisect_right(self.batch_sizes, batch_size)
        if upper >= len(costs_ms):
            return costs_ms[-1] * batch_size / self.batch_sizes[len(costs_ms) - 1]
        below, above = self.batch_sizes[upper - 1], self.batch_sizes[upper]
        share = (batch_size - below) / (above - below)
        return costs_ms[upper - 1] + share * (costs_ms[upper] - costs_ms[upper - 1])

    def __str__(self) -> str:
        head = [f"{'tokens':>6}", *(f"{size:>9}" for size in self.batch_sizes)]
        lines = [f"milliseconds of a batch, by tokens and rows ({self.runtime})", "".join(head)]
        for length, costs_ms in zip(self.lengths, self.costs_ms, strict=True):
            lines.append(f"{length:>6}" + "".join(f"{ms:>9.2f}" for ms in costs_ms))
        return "\n".join(lines)


def load_costs(path: Path) -> CostTable:
    """Reads a table as an instance writes it into its model's folder."""
    try:
        return msgspec.json.decode(read_file(path), type=CostTable)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"the cost table {path} cannot be read: {error}") from None


class BatchRule(msgspec.Struct, frozen=True):
    """Which rows may run together, and which should.

    Attributes:
        max_batch_tokens: Padding included. A longer row runs alone.
        max_batch_cost_ms: Bounds how long the leader waits for its batch members: nobody notices
            half a second of a deadline of 30. A row that costs more runs alone.
        costs: The instance's table; without it, all rows within the bounds run together.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 4096
    max_batch_cost_ms: float = 500.0
    costs: CostTable | None = None

    def admits(
        self, batch_size: int, longest: int, tokens: int, num_waiting: float = math.inf
    ) -> bool:
        """Whether a row of these tokens should join the rows so far.

        Args:
            num_waiting: The instance's share of all waiting rows, this batch included; infinity if
                no other instance could take them.
        """
        padded = max(longest, tokens)
        if batch_size >= self.max_batch_size or padded * (batch_size + 1) > self.max_batch_tokens:
            return False
        if self.costs is None:
            return True
        together_ms = self.costs.cost_ms(batch_size + 1, padded)
        num_later = max(1, int(min(batch_size, num_waiting - batch_size)))
        later_ms = self.costs.cost_ms(num_later, tokens) / num_later
        now_ms = self.costs.cost_ms(batch_size, longest)
        return batch_size < num_waiting and self._pays(self.costs, now_ms, together_ms, later_ms)

    def rows(self, tokens: int, max_rows: int) -> int:
        """How many of the waiting rows of this length should run together; at least 1."""
        most = min(max_rows, self._max_rows(tokens))
        if self.costs is None:
            return max(1, most)
        num_rows, now_ms = 1, self.costs.cost_ms(1, tokens)
        while num_rows < most:
            together_ms = self.costs.cost_ms(num_rows + 1, tokens)
            if not self._pays(self.costs, now_ms, together_ms, now_ms / num_rows):
                break
            num_rows, now_ms = num_rows + 1, together_ms
        return num_rows

    def gain(self, tokens: int) -> float:
        """How many rows of this length a full batch runs in the time of one row alone."""
        num_rows = self._max_rows(tokens)
        if self.costs is None or num_rows < 1:
            return 1.0
        alone_ms = self.costs.cost_ms(1, tokens)
        return max(1.0, alone_ms * num_rows / self.costs.cost_ms(num_rows, tokens))

    def _max_rows(self, tokens: int) -> int:
        """How many rows of this length are within the bounds; 0 if one is not."""
        return min(self.max_batch_size, self.max_batch_tokens // max(1, tokens))

    def _pays(self, costs: CostTable, now_ms: float, together_ms: float, later_ms: float) -> bool:
        """Whether a row should join a batch of `now_ms`, which then takes `together_ms`."""
        is_short = together_ms * costs.pace <= self.max_batch_cost_ms
        return is_short and together_ms - now_ms <= (1 - MIN_SAVING) * later_ms

    def cost_s(self, batch_size: int, longest: int) -> float:
        """A batch's expected time in seconds; 0 without a table."""
        return self.costs.cost_ms(batch_size, longest) / 1e3 if self.costs else 0.0
