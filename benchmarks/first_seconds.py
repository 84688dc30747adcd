"""This server in its first ten seconds, and after a minute: at a first start, and at a second.

    python -m benchmarks.first_seconds --questions_file dev.json
    python -m benchmarks.first_seconds --questions_file dev.json --before PATH  # another checkout

A first start has nothing of the model but its files and the choice of its engine; a second start
follows in the same folder. From the moment that a server is ready, closed-loop clients ask for over
a minute. Its rate is that of the answers in the first ten seconds, and in the last ten; servers of
both starts and all numbers of clients take turns, repeat by repeat. The engine is fixed, since its
choice is measured once and costs the same for all.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import Item, figures, load, uniform
from benchmarks.record import (
    Repeats,
    Section,
    add_before,
    checkouts_of,
    make_parser,
    markdown,
    median,
    spread,
)
from benchmarks.targets import Running, ours
from harness.server import engine_flags, running_server
from qa_service.data.squad import read_squad

WINDOW_S, WARM_AFTER_S = 10.0, 60.0
CLIENTS = (1, 20)
STARTS = ("first", "second")
GOALS = {"first": 0.9, "second": 0.95}
QUESTIONS_APART = 97
"""How many questions later each measurement begins, so that no two ask the same first."""


@contextmanager
def new_copy(model: Path) -> Iterator[Path]:
    """A model's folder without what a start has learned of it."""
    with tempfile.TemporaryDirectory() as folder:
        left_out = shutil.ignore_patterns("costs", "*.safetensors")
        yield shutil.copytree(model, Path(folder) / model.name, ignore=left_out)


def rates(
    root: Path, model: Path, flags: argparse.Namespace, items: Sequence[Item], clients: int
) -> dict[str, float]:
    """Starts a server and asks; the rates in answers a second, and how long the start took."""
    target = ours("", *engine_flags(flags.engine))
    started_s = time.perf_counter()
    with running_server(model, *target.flags, root=root) as server:
        ready_s = time.perf_counter()
        running = Running(target, server.port, server.process.pid)
        fields = {"num_simultaneous_clients": clients, "duration_s": flags.warm_s + WINDOW_S}
        samples = load(running, items, **fields)
    cold, warm = (
        figures(samples, (ready_s + after_s, ready_s + after_s + WINDOW_S), items)
        for after_s in (0.0, flags.warm_s)
    )
    return {
        "cold": cold["throughput"],
        "warm": warm["throughput"],
        "ratio": cold["throughput"] / warm["throughput"],
        "start_s": ready_s - started_s,
        "failed": cold["failed"],
    }


def measure(flags: argparse.Namespace, items: Sequence[Item]) -> Repeats:
    found = Repeats()
    checkouts = checkouts_of(flags)
    for repeat in range(1 if flags.quick else flags.repeats):
        for clients in flags.clients:
            for name, (root, model) in checkouts.items():
                with new_copy(model) as copy:
                    for start in STARTS:
                        begin = (repeat + 1) * QUESTIONS_APART % len(items)
                        asked = [*items[begin:], *items[:begin]]
                        row = f"{name}, {start} start, {clients} clients"
                        found.add(row, rates(root, copy, flags, asked, clients))
    return found


def report(section: Section, engine: str, found: Repeats) -> None:
    rows = []
    for name, of in found.items():
        rate = [spread(of["cold"]), spread(of["warm"])]
        rows.append([name, *rate, f"**{spread(of['ratio'], 2)}**", spread(of["start_s"])])
    head = ["", "answers/s, cold", "answers/s, warm", "cold / warm", "until ready, s"]
    section.say(f"**{engine}**\n\n" + markdown(head, rows))
    missed = [
        name
        for name, of in found.items()
        for start, goal in GOALS.items()
        if f"{start} start" in name and median(of["ratio"]) < goal
    ]
    failed = max(max(of["failed"]) for of in found.values())
    section.say(
        f"Goals of cold / warm: {GOALS['second']} at a second start, {GOALS['first']} at a first; "
        f"missed: {', '.join(missed) or 'none'}. Medians of the repeats, with the minimum and the "
        f"maximum. Failed requests: at most {failed:.0f}."
    )
    section.raw["cells"] = found


def main() -> None:
    parser = make_parser(__doc__)
    add_before(parser)
    parser.add_argument("--engine", default="openvino:int8_bf16", help="engine and precision")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS, help="how many ask")
    parser.add_argument(
        "--warm_s", type=float, default=WARM_AFTER_S, help="seconds of load until it is warm"
    )
    flags = parser.parse_args()
    if flags.quick:
        flags.warm_s = WINDOW_S
    name = f"first_seconds_{flags.engine.replace(':', '_')}"
    section = Section(name, "The first ten seconds", flags, ("openvino",))
    items = uniform(read_squad(flags.questions_file))
    report(section, flags.engine.replace(":", " "), measure(flags, items))
    section.close()


if __name__ == "__main__":
    main()
