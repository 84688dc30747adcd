"""Measures what batches cost an instance's model: a small grid of lengths and sizes.

At each length the sizes double until a doubling stops paying, so that a CPU core, where it
never does, is measured in a second or two, and a GPU up to its bounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from qa_service.inference.reader.reader import LogitsFunction
from qa_service.scheduling.batch_cost import MIN_SAVING, BatchRule, CostTable

SHORTEST_TOKENS = 16
MIN_RUNS = 3
MAX_RUNS = 9
ENOUGH_S = 0.1


def measure_costs(
    logits: LogitsFunction, pad_token_id: int, window_tokens: int, limits: BatchRule, runtime: str
) -> CostTable:
    """Times a model.

    Args:
        logits: The engine's `logits`.
        pad_token_id: What rows are filled with; what a row says does not change its cost.
        window_tokens: The longest row there is.
        limits: The bounds within which batches are made.
        runtime: What is measured, for the table.
    """
    lengths = tuple(_doubling(SHORTEST_TOKENS, window_tokens))
    sizes = tuple(_doubling(1, limits.max_batch_size))
    rows = []
    for length in lengths:
        costs_ms: list[float] = []
        for size in sizes:
            if size > 1 and size * length > limits.max_batch_tokens:
                break
            costs_ms.append(round(_cost_ms(logits, pad_token_id, size, length), 4))
            if size > 1 and not _pays(costs_ms, sizes):
                break
        rows.append(tuple(costs_ms))
    return CostTable(lengths, sizes, tuple(rows), runtime)


def _doubling(first: int, last: int) -> Iterator[int]:
    """The first, its doublings below the last, and the last."""
    while first < last:
        yield first
        first *= 2
    yield last


def _pays(costs_ms: list[float], sizes: tuple[int, ...]) -> bool:
    """Whether the last size has a row cost noticeably less than the one before."""
    last = len(costs_ms) - 1
    a_row_ms, before_ms = costs_ms[last] / sizes[last], costs_ms[last - 1] / sizes[last - 1]
    return a_row_ms <= (1 - MIN_SAVING / 2) * before_ms


def _cost_ms(logits: LogitsFunction, pad_token_id: int, size: int, length: int) -> float:
    """The minimum of a few runs: what comes on top is somebody else's."""
    ids = np.full((size, length), pad_token_id, np.int64)
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    logits(ids, mask, types)  # the first run of a shape also allocates, compiles or captures
    least_s = total_s = float("inf")
    for run in range(MAX_RUNS):
        started_s = time.perf_counter()
        logits(ids, mask, types)
        took_s = time.perf_counter() - started_s
        least_s = min(least_s, took_s)
        total_s = took_s if run == 0 else total_s + took_s
        if run + 1 >= MIN_RUNS and total_s >= ENOUGH_S:
            break
    return least_s * 1e3
