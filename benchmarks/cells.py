"""The figures of a benchmark: target by row by repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.load import Load, timed
from benchmarks.tables import markdown, median, percentile, spread
from benchmarks.targets import Running
from benchmarks.texts import Item
from harness.process import cpu_s

Figures = dict[str, float]


def figures(load: Load, kinds: Sequence[str] = ()) -> Figures:
    """What is kept of one load.

    Args:
        load: It.
        kinds: The kind of each of its requests, if they differ: each kind's latencies are kept
            apart too.
    """
    kept = {
        "throughput": load.throughput_per_s,
        "p50": load.p_ms(50),
        "p99": load.p_ms(99),
        "requests": float(len(load.latencies_ms())),
        "failed": float(load.num_failed),
        "cpu_share": load.cpu_share,
    }
    for kind in sorted(set(kinds)):
        latencies_ms = load.latencies_ms(kinds, kind)
        kept |= {f"{kind}_p{p}": percentile(latencies_ms, p) for p in (50, 99)}
    return {name: round(value, 4) for name, value in kept.items()}


def measure(
    server: Running,
    items: Sequence[Item],
    clients: int,
    warmup_s: float,
    duration_s: float,
    *,
    first: int = 0,
    by_kind: bool = False,
) -> Figures:
    """Loads a server and keeps its figures, what it used of the processor among them.

    `cpu_ms` is of all its processes, `loop_us` of the first one, for one request.

    Args:
        server: It.
        items: What to ask, over and over.
        clients: How many ask.
        warmup_s: For how long before the measurement.
        duration_s: For how long.
        first: Which of the items to start with.
        by_kind: Whether to keep each kind's latencies apart too.
    """
    before_s, loop_before_s = server.cpu_s(), cpu_s(server.pid)
    load = timed(server, items, clients, warmup_s, duration_s, first=first)
    used_s, loop_used_s = server.cpu_s() - before_s, cpu_s(server.pid) - loop_before_s
    answered = max(1, len(load.samples))
    kept = figures(load, [item.kind for item in items] if by_kind else ())
    kept["work"] = round(load.work_per_s(weights(items)), 4)
    kept["cpu_ms"] = round(used_s * 1e3 / answered, 4)
    kept["loop_us"] = round(loop_used_s * 1e6 / answered, 1)
    return kept


def weights(items: Sequence[Item]) -> list[float]:
    """Each item's length over the mean length: about what share of the work it is."""
    lengths = [len(item.question) + len(item.text) for item in items]
    return [length * len(items) / sum(lengths) for length in lengths]


class Cells:
    """All figures, and tables of them."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[str, list[Figures]]] = {}

    def add(self, target: str, row: str, figures: Figures) -> None:
        """Keeps one repeat's figures."""
        self._cells.setdefault(target, {}).setdefault(row, []).append(figures)

    def raw(self) -> dict[str, dict[str, list[Figures]]]:
        """All of them."""
        return self._cells

    @property
    def targets(self) -> list[str]:
        """Those with any figures, in the order of their first."""
        return list(self._cells)

    def values(self, target: str, row: str, name: str) -> list[float]:
        """One figure in each repeat."""
        return [cell[name] for cell in self._cells[target].get(row, []) if name in cell]

    def median(self, target: str, row: str, name: str) -> float:
        """One figure's median; NaN if there is none."""
        return median(self.values(target, row, name))

    def table(self, corner: str, rows: Sequence[str], name: str, digits: int = 1) -> str:
        """Targets down, rows across: one figure's medians and their spread."""
        return self.table_of(corner, rows, lambda c, r: spread(self.values(c, r, name), digits))

    def table_of(self, corner: str, rows: Sequence[str], text: Callable[[str, str], str]) -> str:
        """Targets down, rows across, of any text."""
        lines = [[name, *[text(name, row) for row in rows]] for name in self.targets]
        return markdown([corner, *rows], lines)

    def table_by(self, corner: str, columns: dict[str, tuple[str, str]], digits: int = 1) -> str:
        """Targets down; each column a figure of a row, by its label."""

        def text(target: str, label: str) -> str:
            return spread(self.values(target, *columns[label]), digits)

        return self.table_of(corner, list(columns), text)

    def worst(self, name: str) -> float:
        """The greatest of a figure in all cells."""
        every = [c for rows in self._cells.values() for cells in rows.values() for c in cells]
        return max((cell[name] for cell in every), default=0.0)
