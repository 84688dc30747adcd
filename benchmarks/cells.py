"""The figures of a benchmark: target by row by repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.load import Figures
from benchmarks.record import Section
from benchmarks.tables import markdown, median, spread
from benchmarks.targets import NotStartedError, Running, Target, running


class Cells:
    """All figures, and tables of them.

    Attributes:
        raw: The figures of each repeat, by target and row.
        absent: Why a target took no part, or no longer; by its name.
    """

    def __init__(self) -> None:
        self.raw: dict[str, dict[str, list[Figures]]] = {}
        self.absent: dict[str, str] = {}

    def measure(
        self,
        targets: Sequence[Target],
        model: Path,
        repeats: int,
        rows: Callable[[Running, int], None],
    ) -> None:
        """Starts every target in every repeat; each repeat begins with the next one.

        Args:
            rows: Puts all rows to a running target, in the repeat of this number.
        """
        for repeat in range(repeats):
            first = repeat % len(targets)
            for target in [*targets[first:], *targets[:first]]:
                if target.name not in self.absent:
                    self._measure_one(target, model, repeat, rows)

    def _measure_one(
        self, target: Target, model: Path, repeat: int, rows: Callable[[Running, int], None]
    ) -> None:
        started_s = time.perf_counter()
        try:
            with running(target, model) as server:
                rows(server, repeat)
        except (NotStartedError, RuntimeError, OSError) as error:
            self.absent[target.name] = f"{type(error).__name__}: {error}"
        said = self.absent.get(target.name, "measured")
        seconds = time.perf_counter() - started_s
        print(f"repeat {repeat}, {target.name}: {said}, {seconds:.0f} s", flush=True)

    def say(
        self, section: Section, rows: Sequence[str], figures: Sequence[tuple[str, str, int]]
    ) -> None:
        """Says who is absent, and a table of each figure: its name, its label, its digits."""
        self.say_absent(section)
        for name, label, digits in figures:
            section.say(f"**{label}**\n\n" + self.table("", rows, name, digits))
        section.say(f"Failed requests: at most {self.worst('failed'):.0f} in a cell.")

    def say_absent(self, section: Section) -> None:
        """Keeps the figures in the section, and says who is absent."""
        section.raw |= {"cells": self.raw, "absent": self.absent}
        for name, error in self.absent.items():
            section.say(f"{name} did not take part: {error}")

    def add(self, target: str, row: str, figures: Figures) -> None:
        self.raw.setdefault(target, {}).setdefault(row, []).append(figures)

    def values(self, target: str, row: str, name: str) -> list[float]:
        return [cell[name] for cell in self.raw[target].get(row, []) if name in cell]

    def median(self, target: str, row: str, name: str) -> float:
        """One figure's median; NaN if there is none."""
        return median(self.values(target, row, name))

    def table(self, corner: str, rows: Sequence[str], name: str, digits: int = 1) -> str:
        """Targets down, rows across: one figure's medians and their spread."""
        return self.table_of(corner, rows, lambda c, r: spread(self.values(c, r, name), digits))

    def table_of(self, corner: str, rows: Sequence[str], text: Callable[[str, str], str]) -> str:
        lines = [[name, *[text(name, row) for row in rows]] for name in self.raw]
        return markdown([corner, *rows], lines)

    def table_by(self, corner: str, columns: dict[str, tuple[str, str]], digits: int = 1) -> str:
        def text(target: str, label: str) -> str:
            return spread(self.values(target, *columns[label]), digits)

        return self.table_of(corner, list(columns), text)

    def worst(self, name: str) -> float:
        every = [c for rows in self.raw.values() for cells in rows.values() for c in cells]
        return max((cell[name] for cell in every), default=0.0)
