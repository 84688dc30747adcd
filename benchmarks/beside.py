"""This checkout beside another one: the same loads, by turns.

    python -m benchmarks.beside --before PATH --questions_file dev.json

What a request costs the loop is seen with the engine that answers at once; with the built-in model
in float32, whether the instances are kept as busy. The other checkout runs in this environment, on
the model that was prepared in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cells import Cells
from benchmarks.load import measure
from benchmarks.record import Section, checkouts_of, make_parser
from benchmarks.tables import markdown, spread
from benchmarks.targets import ours, running
from benchmarks.texts import Item, uniform
from qa_service.data.squad import read_squad

WARMUP_S = 0.5
AT_ONCE = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")
MODEL = ("--num_inference_sessions", "2")
LOADS = {"at once": (AT_ONCE, (1, 20, 50), 2.0), "the model": (MODEL, (1, 16), 8.0)}
"""Flags, numbers of clients, and how long each load lasts, in seconds."""

FIGURES = [
    ("p50", "p50, ms"),
    ("throughput", "answers/s"),
    ("loop_us", "processor time of the loop for one answer, us"),
]


def measure_all(
    cells: Cells, name: str, root: Path, model: Path, items: Sequence[Item], share: float
) -> None:
    """All loads on one checkout's server."""
    for engine, (flags, numbers, duration_s) in LOADS.items():
        with running(ours(name, *flags), model, root) as server:
            for clients in numbers:
                figures = measure(server, items, clients, WARMUP_S * share, duration_s * share)
                cells.add(name, f"{engine}, {clients}", figures)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    flags = parser.parse_args()
    section = Section("beside", f"Beside {flags.before.name}", flags)
    items = uniform(read_squad(flags.questions_file))
    checkouts = checkouts_of(flags)
    cells = Cells()
    share = 0.1 if flags.quick else 1.0
    for repeat in range(1 if flags.quick else flags.repeats):
        for name in sorted(checkouts, reverse=bool(repeat % 2)):
            measure_all(cells, name, *checkouts[name], items, share)
    rows = [f"{engine}, {clients}" for engine, load in LOADS.items() for clients in load[1]]
    for figure, title in FIGURES:
        section.say(f"**{title}**\n\n" + cells.table("engine, clients", rows, figure, 2))
        pairs = {row: [cells.values(name, row, figure) for name in checkouts] for row in rows}
        ratios = [
            spread([now / was for was, now in zip(*pairs[row], strict=True)], 2) for row in rows
        ]
        section.say(markdown(["now / before, pair by pair", *rows], [["", *ratios]]))
    section.raw["cells"] = cells.raw()
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
