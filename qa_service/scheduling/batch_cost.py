"""What a batch costs an instance, and so what is worth running together.

No rule of thumb holds everywhere: on a GPU a batch of eight costs little more than one request;
on a CPU core it can cost more than the eight apart, because its activations leave the cache. So
each instance measures its model once, and whoever makes a batch, the scheduler of requests and
the reader of windows alike, asks the same rule.

One more row joins where what it adds to the batch is less than what it would cost later, in a
batch like this one or of as many as are left; and an instance takes its share of what waits and no
more, so that nobody shares a batch while an instance is free. If nobody came any more, smaller
batches would bring the mean completion forward; but others do come, and what they wait for is the
throughput that was not used before (`tests/unit/test_batch_sizes.py` simulates it).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import msgspec

from qa_service.errors import SetupError

MIN_SAVING = 0.1
"""One more row must save at least this share of what it costs elsewhere: measurements are noisy."""


class CostTable(msgspec.Struct, frozen=True):
    """Milliseconds of the model on padded batches, measured at a grid of lengths and sizes.

    Attributes:
        lengths: Tokens of a row, ascending.
        batch_sizes: Rows, ascending, from 1.
        costs_ms: For each length, the cost at the first few of the batch sizes: beyond those
            it was found to be in proportion to the rows.
        runtime: What was measured: library, version, device.
        pace: How many times longer than `costs_ms` batches take at present, whatever their size.
    """

    lengths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    costs_ms: tuple[tuple[float, ...], ...]
    runtime: str = ""
    pace: float = 1.0

    def __post_init__(self) -> None:
        """Checks the shape.

        Raises:
            ValueError: Rows and columns do not fit each other, or are not ascending.
        """
        for axis in (self.lengths, self.batch_sizes):
            if not axis or axis[0] < 1 or list(axis) != sorted(set(axis)):
                raise ValueError(f"lengths and batch sizes must ascend from 1 or more: {axis}")
        rows = [len(row) for row in self.costs_ms]
        if len(rows) != len(self.lengths) or not all(1 <= n <= len(self.batch_sizes) for n in rows):
            raise ValueError("costs_ms needs a row for each length, of one to all batch sizes")
        if self.batch_sizes[0] != 1 or min(map(min, self.costs_ms)) <= 0.0:
            raise ValueError("batch sizes must begin with 1, and all costs be above 0")

    def cost_ms(self, batch_size: int, tokens: int) -> float:
        """Estimates what a batch costs, linear between the points of the grid.

        Args:
            batch_size: Rows.
            tokens: Tokens of the longest row. Above all lengths, the cost is in proportion to
                them: a longer text is cut into windows.
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
        """A table for people: a line for each length, a column for each batch size."""
        head = [f"{'tokens':>6}", *(f"{size:>9}" for size in self.batch_sizes)]
        lines = [f"milliseconds of a batch, by tokens and rows ({self.runtime})", "".join(head)]
        for length, costs_ms in zip(self.lengths, self.costs_ms, strict=True):
            lines.append(f"{length:>6}" + "".join(f"{ms:>9.2f}" for ms in costs_ms))
        return "\n".join(lines)


def load_costs(path: Path) -> CostTable:
    """Reads a table as an instance writes it beside its model.

    Raises:
        SetupError: There is none, or it is not a table.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostTable)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"the cost table {path} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Which rows may run together, and which should.

    Attributes:
        max_batch_size: Rows in a batch.
        max_batch_tokens: Tokens in a batch, padding included. A longer row still goes, alone.
        max_batch_cost_ms: What a batch may cost by the table: the longest that its first
            request waits for its batch members. One that costs more still goes, alone.
        costs: What the instance measured; without it, all within the bounds run together.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 4096
    max_batch_cost_ms: float = 500.0
    costs: CostTable | None = None

    def admits(
        self, batch_size: int, longest: int, tokens: int, num_waiting: float = math.inf
    ) -> bool:
        """Whether one more row should join.

        Args:
            batch_size: Rows so far.
            longest: Tokens of the longest of them.
            tokens: Tokens of the one more.
            num_waiting: How many rows there are for this instance, these among them; infinity
                where nobody else is there to take them.
        """
        padded = max(longest, tokens)
        if batch_size >= self.max_batch_size or padded * (batch_size + 1) > self.max_batch_tokens:
            return False
        if self.costs is None:
            return True
        together_ms = self.costs.cost_ms(batch_size + 1, padded)
        if together_ms * self.costs.pace > self.max_batch_cost_ms:
            return False
        num_later = max(1, int(min(batch_size, num_waiting - batch_size)))
        later_ms = self.costs.cost_ms(num_later, tokens) / num_later
        added_ms = together_ms - self.costs.cost_ms(batch_size, longest)
        return batch_size < num_waiting and added_ms <= (1 - MIN_SAVING) * later_ms

    def gain(self, tokens: int) -> float:
        """How many rows of so many tokens a full batch does in the time of one alone."""
        num_rows = min(self.max_batch_size, self.max_batch_tokens // max(1, tokens))
        if self.costs is None or num_rows < 1:
            return 1.0
        alone_ms = self.costs.cost_ms(1, tokens)
        return max(1.0, alone_ms * num_rows / self.costs.cost_ms(num_rows, tokens))

    def cost_s(self, batch_size: int, longest: int) -> float:
        """What a batch is expected to take, in seconds; 0 if nothing was measured."""
        return self.costs.cost_ms(batch_size, longest) / 1e3 if self.costs else 0.0
