"""This checkout beside another one: the same loads, by turns.

    python -m benchmarks.beside --before PATH --questions_file dev.json
    python -m benchmarks.beside --before PATH --loads at_once --repeats 5    # two minutes

What a request costs the loop is seen with the engine that answers at once; with the built-in model
in float32, whether the instances are kept as busy. The other checkout runs in this environment, on
the model that was prepared in it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import Cells
from benchmarks.load import measure
from benchmarks.record import Section, checkouts_of, make_parser
from benchmarks.tables import markdown, spread
from benchmarks.targets import ours, running
from benchmarks.texts import Item, uniform
from qa_service.data.squad import read_squad

WARMUP_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """The server's flags, how many clients ask it in turn, and for how long each time."""

    flags: tuple[str, ...]
    clients: tuple[int, ...]
    duration_s: float


LOADS = {
    "at_once": Load(
        ("--inference_engine_type", "instant", "--num_inference_sessions", "1"), (1, 20, 50), 2.0
    ),
    "model": Load(("--num_inference_sessions", "2"), (1, 16), 8.0),
}

FIGURES = [
    ("p50", "p50, ms"),
    ("throughput", "answers/s"),
    ("loop_us", "processor time of the loop for one answer, us"),
]


def measure_all(
    cells: Cells,
    name: str,
    checkout: tuple[Path, Path],
    flags: argparse.Namespace,
    items: list[Item],
) -> None:
    """The chosen loads on one checkout's server."""
    root, model = checkout
    share = 0.1 if flags.quick else 1.0
    for load_name in flags.loads:
        load = LOADS[load_name]
        with running(ours(name, *load.flags), model, root) as server:
            for clients in load.clients:
                figures = measure(server, items, clients, WARMUP_S * share, load.duration_s * share)
                cells.add(name, f"{load_name}, {clients}", figures)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    loads = tuple(LOADS)
    parser.add_argument("--loads", nargs="+", choices=loads, default=loads, help="only these")
    flags = parser.parse_args()
    section = Section("beside", f"Beside {flags.before.name}", flags)
    items = uniform(read_squad(flags.questions_file))
    checkouts = checkouts_of(flags)
    cells = Cells()
    for repeat in range(1 if flags.quick else flags.repeats):
        for name in sorted(checkouts, reverse=bool(repeat % 2)):
            measure_all(cells, name, checkouts[name], flags, items)
    rows = [f"{name}, {clients}" for name in flags.loads for clients in LOADS[name].clients]
    for figure, title in FIGURES:
        section.say(f"**{title}**\n\n" + cells.table("load, clients", rows, figure, 2))
        pairs = {row: [cells.values(name, row, figure) for name in checkouts] for row in rows}
        ratios = [
            spread([now / was for was, now in zip(*pairs[row], strict=True)], 2) for row in rows
        ]
        section.say(markdown(["now / before, pair by pair", *rows], [["", *ratios]]))
    section.raw["cells"] = cells.raw
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
