"""Threads or processes: both worker types, and the loop's own latency while they are busy.

    python -m benchmarks.threads --questions_file dev.json

16 closed-loop clients keep 1, 2 and 4 sessions busy, in processes at niceness 10 and 0 and in
threads of the server's own process. Beside them a connection sends a `health` query fifty times a
second, which the loop answers itself: its latency, from when it was due, is how long the loop
lets wait whoever comes.
"""

from __future__ import annotations

import sys

from benchmarks.cells import Cells, figures
from benchmarks.contestants import ours, running
from benchmarks.generator import Probe
from benchmarks.peers import play_in_turn
from benchmarks.record import Section, make_parser
from benchmarks.tables import percentile
from benchmarks.texts import Item, uniform
from benchmarks.wires import Frames
from qa_service.squad import read_squad

CLIENTS = 16
SESSIONS = (1, 2, 4)
WARMUP_S, DURATION_S = 0.5, 4.5
PROBE = Probe(Frames().message(b'{"type":"health"}'), interval_s=0.02)
KINDS = {
    "processes, niceness 10": ("--worker_type", "process", "--worker_niceness", "10"),
    "processes, niceness 0": ("--worker_type", "process", "--worker_niceness", "0"),
    "threads": ("--worker_type", "thread"),
}


def row(sessions: int) -> str:
    return f"{sessions} session{'s' * (sessions > 1)}"


def contestants():
    """Every kind of worker with every number of sessions."""
    return [
        ours(kind, "--num_inference_sessions", str(number), *flags, settings=row(number))
        for number in SESSIONS
        for kind, flags in KINDS.items()
    ]


def measure(contestant, model, items: list[Item], duration_s: float, cells: Cells) -> None:
    """Loads one of them and probes its loop."""
    requests = [contestant.wire.encode(item.question, item.text) for item in items]
    with running(contestant, model) as server:
        load = server.generator(requests).run(CLIENTS, WARMUP_S, duration_s, PROBE)
    probes_ms = load.probe_latencies_ms()
    loop = {f"loop_p{p}": percentile(probes_ms, p) for p in (50, 99)}
    loop["loop_max"] = max(probes_ms, default=float("nan"))
    cells.add(contestant.name, contestant.settings, figures(load) | loop)


def report(section: Section, cells: Cells) -> None:
    rows = [row(number) for number in SESSIONS]
    for name, label, digits in (
        ("throughput", "answers/s", 1),
        ("p50", "p50, ms", 0),
        ("p99", "p99, ms", 0),
        ("loop_p50", "the loop's p50, ms", 2),
        ("loop_p99", "the loop's p99, ms", 2),
    ):
        section.say(f"**{label}**\n\n" + cells.table("", rows, name, digits))
    section.say(
        f"{CLIENTS} clients, paragraphs. Failed requests: at most {cells.worst('failed'):.0f} in a "
        f"cell. The load generator, whose own wait for a core is in every figure, used at most "
        f"{cells.worst('cpu_share'):.1%} of one."
    )


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    section = Section("threads", "Threads or processes", flags)
    items = uniform(read_squad(flags.questions_file))
    cells = Cells()
    duration_s = 1.0 if flags.quick else DURATION_S
    play_in_turn(
        section,
        contestants(),
        1 if flags.quick else flags.repeats,
        lambda contestant: measure(contestant, flags.model, items, duration_s, cells),
    )
    section.raw["cells"] = cells.raw()
    report(section, cells)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
