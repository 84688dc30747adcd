"""The tail of equal clients, compared with that of first come, first served on the same server.

    python -m benchmarks.tail --questions_file dev.json
    python -m benchmarks.tail --questions_file dev.json --before PATH  # another checkout, in turn

Closed-loop clients ask one question at a time. By turns each has a connection, and so a share, of
its own; as they come, all have one token, and so one share, within which the oldest request goes
first. Batching is the same. Machines change their pace within minutes, so p99 is divided by p50 of
the same seconds, too. With `--token_us` the engine sleeps so long for a token, and a busy machine
changes little: server, connections and clients are real.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.feed import sleeping
from benchmarks.load import uniform
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
from harness.load import report_of
from harness.server import engine_flags, running_server
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.programs.access import Access
from qa_service.programs.load.plan import LoadPlan

CLIENTS = (5, 20, 50)
WARMUP_S = 3.0
SLEEPING = ("--devices", "cpu", "--cost_table", "off", "--static_shapes_bytes", "0")
TOKEN = "of-all-clients-together"
AS_THEY_COME = "first come, first served"
RATIOS = ("p99_ms", "p99 / p50")


def measure(
    name: str,
    checkout: tuple[Path, Path],
    flags: argparse.Namespace,
    questions: Sequence[SquadQuestion],
    found: Repeats,
) -> None:
    root, model = checkout
    token = TOKEN if name == AS_THEY_COME else None
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(TOKEN)
        file.flush()
        options = [*engine_flags(flags.engine)] if flags.token_us is None else [*SLEEPING]
        if flags.token_us is not None:
            options += ["--max_batch_size", str(flags.max_batch_size)]
        options += ["--auth_token_file", file.name] if token else []
        with running_server(model, *options, root=root, wrapper=wrapper(flags, root)) as server:
            for clients in flags.clients:
                load = {"num_simultaneous_clients": clients, "access": Access(token=token)}
                plan = ("127.0.0.1", server.port, questions)
                report_of(LoadPlan(*plan, **load, duration_s=WARMUP_S))
                report = report_of(LoadPlan(*plan, **load, duration_s=flags.seconds))
                p50_ms, p99_ms = (report.percentiles_ms[percent] for percent in (50, 99))
                figures = {"p50_ms": p50_ms, "p99_ms": p99_ms, "rate": report.throughput}
                found.add(f"{clients}, {name}", figures | {"p99 / p50": p99_ms / p50_ms})


def wrapper(flags: argparse.Namespace, root: Path) -> tuple[str, ...]:
    if flags.token_us is None:
        return ()
    return sleeping(root, FIXED_US=flags.fixed_us, TOKEN_US=flags.token_us)


def report(section: Section, engine: str, found: Repeats) -> None:
    rows = []
    for row, figures in sorted(found.items(), key=lambda item: int(item[0].partition(",")[0])):
        plain = found[f"{row.partition(',')[0]}, {AS_THEY_COME}"]
        by_plain = [f"{median(figures[it]) / median(plain[it]):.2f}" for it in RATIOS]
        digits = {"rate": 1, "p50_ms": 0, "p99_ms": 0, "p99 / p50": 2}
        rows.append([row, *(spread(figures[name], n) for name, n in digits.items()), *by_plain])
    head = ["clients", "answers/s", "p50, ms", "p99, ms", "p99 / p50", "p99 by FCFS's"]
    section.say(f"**{engine}**\n\n" + markdown([*head, "p99 / p50 by FCFS's"], rows))
    section.raw["cells"] = found


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_before(parser)
    add("--engine", default="openvino:int8_bf16", help="engine and precision")
    add("--token_us", type=float, help="microseconds that a simulated engine sleeps for a token")
    add("--fixed_us", type=float, default=0.0, help="and for a batch")
    add("--max_batch_size", type=int, default=1, help="rows in its batches")
    add("--clients", nargs="+", type=int, default=CLIENTS, help="how many ask")
    add("--seconds", type=float, default=40.0, help="of each measurement")
    flags = parser.parse_args()
    if flags.token_us is not None:
        flags.engine = (
            f"sleeping:{flags.fixed_us:.0f}+{flags.token_us:.0f}us,{flags.max_batch_size}"
        )
    name = "tail_" + re.sub(r"\W+", "_", flags.engine)
    section = Section(name, "The tail of equal clients", flags, ("openvino",))
    questions = [item.asked for item in uniform(read_squad(flags.questions_file))]
    checkouts = checkouts_of(flags)
    checkouts[AS_THEY_COME] = checkouts["now"]
    found = Repeats()
    for _ in range(1 if flags.quick else flags.repeats):
        for name, checkout in checkouts.items():
            measure(name, checkout, flags, questions, found)
    report(section, flags.engine.replace(":", " "), found)
    section.close()


if __name__ == "__main__":
    main()
