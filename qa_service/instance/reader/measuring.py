"""What batches cost an instance's model: an estimate, or a measured grid of lengths and sizes.

A CPU core gains little from batches, and takes seconds for the grid: its first table is estimated
from the runs in which the instance has given its known answers. On a GPU, where batches gain much,
the grid is measured.

At each length the sizes double until a doubling stops paying, so that a CPU core, where it never
pays, takes a few seconds, and a GPU is measured up to its bounds. Then the grid is timed in passes,
each shape once in a pass: so changes of the machine's speed affect all shapes alike, and each run
follows one of another shape, as in service, which costs some engines time. A start waits for all
this, so of a slow model the runs that decided whether a size pays are also its measurement.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from qa_service.instance.arrays import Int64Array, Logits, LogitsFunction, Rows
from qa_service.instance.batch_cost import MIN_SAVING, BatchRule, CostTable
from qa_service.instance.learned_costs import LearnedCosts

RunShape = Callable[[int, int], float]
"""Runs a batch of a shape; returns its milliseconds."""

SHORTEST_TOKENS = 16
"""The shortest window that a model may have; few questions and texts are shorter together."""
FIRST_RUNS, MIN_RUNS = 3, 2
"""Runs that decide whether a size pays, and those of a slow model. The fastest counts: one may be
disturbed, and the first one may also allocate, compile or capture."""
MAX_PASSES = 9
"""It bounds the passes of a small, fast grid."""
ENOUGH_S = 0.5
"""No pass begins after this time, and none at all with a slow model, one that takes longer to run
each shape once. Every batch that runs corrects the table."""

OVERHEAD_TOKENS = 6
"""What each run costs an engine on a core in addition to its tokens: 0.5 ms, where a token of the
built-in model takes 0.09."""


class TimedRuns:
    """A `LogitsFunction` that notes what its runs take.

    Attributes:
        took: Rows, tokens of each, and milliseconds, of each run.
    """

    def __init__(self, logits: LogitsFunction) -> None:
        self.took: list[tuple[int, int, float]] = []
        self._logits = logits

    def __call__(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        started_s = time.perf_counter()
        found = self._logits(ids, mask, types)
        self.took.append((*ids.shape, (time.perf_counter() - started_s) * 1e3))
        return found


def estimate_costs(
    took: Sequence[tuple[int, int, float]], window_tokens: int, limits: BatchRule, runtime: str
) -> CostTable:
    """A table of costs in proportion to the tokens, corrected by the runs so far.

    Args:
        took: Of `TimedRuns`, one run or more; the first also allocates or compiles, and counts only
            if there is no other.
    """
    runs = took[1:] or took
    token_ms = statistics.median(ms / _tokens(rows, tokens) for rows, tokens, ms in runs)
    lengths = tuple(_doubling(SHORTEST_TOKENS, window_tokens))
    sizes = tuple(_doubling(1, limits.max_batch_size))
    costs_ms = [
        tuple(
            token_ms * _tokens(size, length)
            for size in sizes
            if size == 1 or size * length <= limits.max_batch_tokens
        )
        for length in lengths
    ]
    learned = LearnedCosts(CostTable(lengths, sizes, tuple(costs_ms), runtime))
    for run in runs:
        learned.observe(*run)
    return learned.in_full()


def _tokens(rows: int, tokens: int) -> int:
    """The cost of a run, in tokens."""
    return OVERHEAD_TOKENS + rows * tokens


def measure_costs(
    logits: LogitsFunction,
    make_rows: Callable[[int, int], Rows],
    window_tokens: int,
    limits: BatchRule,
    runtime: str,
    *,
    clock_s: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Times a model on rows that `make_rows` makes: a number of rows, of a number of tokens."""

    def run_ms(size: int, length: int) -> float:
        rows = make_rows(size, length)
        started_s = clock_s()
        logits(*rows)
        return round((clock_s() - started_s) * 1e3, 4)

    lengths = tuple(_doubling(SHORTEST_TOKENS, window_tokens))
    sizes = tuple(_doubling(1, limits.max_batch_size))
    first_ms: list[list[float]] = []
    for length in lengths:
        num_runs = MIN_RUNS if _is_slow(first_ms) else FIRST_RUNS
        first_ms.append(_while_it_pays(run_ms, length, sizes, limits, num_runs))
    shapes = [
        (size, length)
        for length, row in zip(lengths, first_ms, strict=True)
        for size in sizes[: len(row)]
    ]
    passes: list[list[float]] = []
    max_passes = 0 if _is_slow(first_ms) else MAX_PASSES
    enough_at_s = clock_s() + ENOUGH_S
    while len(passes) < max_passes and clock_s() < enough_at_s:
        passes.append([run_ms(*shape) for shape in shapes])
    # The minimum of the passes: anything above it is noise.
    costs_ms = map(min, zip(*passes, strict=True)) if passes else chain.from_iterable(first_ms)
    rows = tuple(tuple(islice(costs_ms, len(row))) for row in first_ms)
    return CostTable(lengths, sizes, rows, runtime)


def _is_slow(first_ms: Sequence[Sequence[float]]) -> bool:
    """Whether a run of each of these shapes takes too long for passes."""
    return sum(map(sum, first_ms)) > ENOUGH_S * 1e3


def _doubling(first: int, last: int) -> Iterator[int]:
    """The first, its doublings below the last, and the last."""
    while first < last:
        yield first
        first *= 2
    yield last


def _while_it_pays(
    run_ms: RunShape, length: int, sizes: Sequence[int], limits: BatchRule, num_runs: int
) -> list[float]:
    """Milliseconds of a batch of each size, up to the first that makes a row no cheaper."""
    found_ms: list[float] = []
    before_ms = math.inf
    for size in sizes:
        if size > 1 and size * length > limits.max_batch_tokens:
            break
        found_ms.append(min(run_ms(size, length) for _ in range(num_runs)))
        a_row_ms = found_ms[-1] / size
        if a_row_ms > (1 - MIN_SAVING / 2) * before_ms:
            break
        before_ms = a_row_ms
    return found_ms
