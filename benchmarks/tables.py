"""Medians with their spread, and tables of them in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from qa_service.programs.load import report


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and in brackets the minimum and the maximum if there are several."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def median(values: Sequence[float]) -> float:
    values = [value for value in values if not math.isnan(value)]
    return statistics.median(values) if values else math.nan


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in any order; NaN if there are none."""
    return report.percentile(sorted(values), percent)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; the first column is left-aligned, the others are right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
