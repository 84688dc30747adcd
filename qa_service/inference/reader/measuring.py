"""Measures the cost of batches in an instance's model: a small grid of lengths and sizes.

At each length the sizes double until a doubling stops paying, so that a CPU core, where it never
pays, takes a few seconds, and a GPU is measured up to its bounds. Then the grid is timed in passes,
each shape once in a pass: so changes of the machine's speed affect all shapes alike, and each run
follows one of another shape, as in service, which costs some engines time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from qa_service.inference.arrays import LogitsFunction, Rows
from qa_service.scheduling.batch_cost import MIN_SAVING, BatchRule, CostTable

Shape = tuple[int, int]
"""Rows, and tokens of each."""
RunShape = Callable[[int, int], float]
"""Runs a batch of a shape; returns its milliseconds."""

SHORTEST_TOKENS = 16
"""The shortest window that a model may have; few questions and texts are shorter together."""
FIRST_RUNS = 2
"""Runs that decide whether a size pays; the faster one counts, since one may be disturbed."""
MAX_PASSES = 9
"""It bounds the passes of a small, fast grid."""
ENOUGH_S = 0.5
"""No pass begins after this time, since a start waits for them: a slow model has one, whose long
runs are disturbed by a smaller share. Every batch that runs corrects what they measure."""


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
        return (clock_s() - started_s) * 1e3

    lengths = tuple(_doubling(SHORTEST_TOKENS, window_tokens))
    sizes = tuple(_doubling(1, limits.max_batch_size))
    grid = [
        [(size, length) for size in _sizes_that_pay(run_ms, length, sizes, limits)]
        for length in lengths
    ]
    costs_ms = _in_passes(run_ms, list(chain.from_iterable(grid)), clock_s)
    rows = tuple(tuple(costs_ms[shape] for shape in row) for row in grid)
    return CostTable(lengths, sizes, rows, runtime)


def _doubling(first: int, last: int) -> Iterator[int]:
    """The first, its doublings below the last, and the last."""
    while first < last:
        yield first
        first *= 2
    yield last


def _sizes_that_pay(
    run_ms: RunShape, length: int, sizes: tuple[int, ...], limits: BatchRule
) -> tuple[int, ...]:
    """The sizes for the table: up to the first that makes a row no cheaper."""
    before_ms = math.inf
    for count, size in enumerate(sizes, 1):
        if size > 1 and size * length > limits.max_batch_tokens:
            return sizes[: count - 1]
        run_ms(size, length)  # the first run of a shape also allocates, compiles or captures
        a_row_ms = min(run_ms(size, length) for _ in range(FIRST_RUNS)) / size
        if a_row_ms > (1 - MIN_SAVING / 2) * before_ms:
            return sizes[:count]
        before_ms = a_row_ms
    return sizes


def _in_passes(
    run_ms: RunShape, shapes: Sequence[Shape], clock_s: Callable[[], float]
) -> dict[Shape, float]:
    """The minimum of each shape over some passes: anything above it is noise."""
    least_ms = dict.fromkeys(shapes, math.inf)
    started_s = clock_s()
    for _ in range(MAX_PASSES):
        for shape in shapes:
            least_ms[shape] = min(least_ms[shape], round(run_ms(*shape), 4))
        if clock_s() - started_s >= ENOUGH_S:
            break
    return least_ms
