"""Companions by length or first-come: the same server on mixed lengths.

    python -m benchmarks.fifo --questions_file dev.json

Each way once as the server is, when batches form only where the measured costs say that they
pay, and once with the cost table off, when every batch is filled up to eight.
"""

from __future__ import annotations

import sys

from benchmarks.cells import Cells, measure
from benchmarks.contestants import Contestant, ours, running
from benchmarks.peers import play_in_turn
from benchmarks.record import Section, make_parser
from benchmarks.texts import mixed
from qa_service.squad import read_squad

CLIENTS = 32
WARMUP_S, DURATION_S = 1.5, 10.0
KINDS = ("sentence", "paragraph", "long")
ROW = f"{CLIENTS} clients"
OFF = ("--max_batch_size", "8", "--cost_table", "off")
CONTESTANTS = [
    ours("by length", "--batch_by", "length"),
    ours("first-come", "--batch_by", "arrival"),
    ours("by length, always batches of 8", "--batch_by", "length", *OFF),
    ours("first-come, always batches of 8", "--batch_by", "arrival", *OFF),
]


def report(section: Section, cells: Cells) -> None:
    columns = {"answers": (ROW, "throughput"), "counted by length": (ROW, "work")}
    section.say("**answers/s**\n\n" + cells.table_by("", columns))
    for percent in (50, 99):
        names = {f"p{percent}": "all"} | {f"{kind}_p{percent}": kind for kind in KINDS}
        section.say(
            f"**p{percent}, ms**\n\n"
            + cells.table_by("", {label: (ROW, name) for name, label in names.items()}, 0)
        )
    section.say(
        f"{CLIENTS} clients, mixed lengths: half single sentences, a tenth texts of 2,000 words. "
        f"Failed requests: at most {cells.worst('failed'):.0f} in a run. The load generator used "
        f"at most {cells.worst('cpu_share'):.1%} of one core."
    )


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    section = Section("fifo", "First-come or by length", flags)
    items = mixed(read_squad(flags.questions_file))
    cells = Cells()
    duration_s = 2.0 if flags.quick else DURATION_S

    def play(contestant: Contestant) -> None:
        with running(contestant, flags.model) as server:
            kept = measure(server, items, CLIENTS, WARMUP_S, duration_s, by_kind=True)
        cells.add(contestant.name, ROW, kept)

    play_in_turn(section, CONTESTANTS, 1 if flags.quick else flags.repeats, play)
    section.raw["cells"] = cells.raw()
    report(section, cells)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
