"""The loop alone: requests a second with the engine that answers at once, and memory.

    python -m benchmarks.loop --questions_file dev.json

Compared with this server: an asyncio server on uvloop over the same frames, once answering in its
process and once through worker processes over a socketpair each, as the server does; and mosec.
All parse with msgspec, answer with the text's first word, and have two workers where they have
any. Each is started again in each repeat, takes all rows, then 5,000 further connections that have
asked one question each and stay idle, then all rows again.
"""

from __future__ import annotations

import argparse
import fcntl
import os
from contextlib import ExitStack

from benchmarks.load import Cells, measure, uniform
from benchmarks.record import Section, make_parser, spread
from benchmarks.targets import MOSEC, Running, ours, peer
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.machine import allow_descriptors
from qa_service.programs.load.wire import QaWire

IDLE = 5000
FIRST_HIGH = 2048  # above what `select` knows
CLIENTS = (1, 10, 100, 1000)
WARMUP_S, DURATION_S = 0.2, 1.0
TARGETS = [
    ours(
        "this server",
        *("--inference_engine_type", "instant", "--max_connections", "8000"),
        *("--max_queue_size", "4000"),
    ),
    peer("uvloop, through workers", "uvloop_server", QaWire, "--sessions", "2"),
    peer("uvloop, answering itself", "uvloop_server", QaWire, "--sessions", "0"),
    peer("mosec, no batching", "mosec_server", MOSEC, "--instant"),
    peer("mosec, batches of 32", "mosec_server", MOSEC, "--instant", "--batch", "32"),
]


def row(clients: int, idle: int) -> str:
    return f"{clients:,} + {idle:,} idle" if idle else f"{clients:,}"


def open_idle(stack: ExitStack, server: Running, asked: SquadQuestion, number: int) -> float:
    """Opens connections that ask one question each and are then silent.

    Their descriptors are high: the load generator waits with `select`, which knows 1,024.

    Returns:
        What each takes of the server's memory, in KiB.
    """
    before_bytes = server.rss_bytes()
    for _ in range(number):
        with server.connect() as sock:
            server.ask(asked, sock)
            high = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH)
        stack.callback(os.close, high)
    return (server.rss_bytes() - before_bytes) / number / 1024


class Loop:
    def __init__(self, flags: argparse.Namespace) -> None:
        self._items = uniform(read_squad(flags.questions_file))[:500]
        self._idle = 200 if flags.quick else IDLE
        self._duration_s = 0.3 if flags.quick else DURATION_S
        self.cells = Cells()
        self.memory_kib: dict[str, list[float]] = {}

    @property
    def rows(self) -> list[str]:
        return [row(clients, idle) for idle in (0, self._idle) for clients in CLIENTS]

    def measure(self, server: Running, repeat: int) -> None:
        with ExitStack() as stack:
            self._measure(server, 0)
            kib = open_idle(stack, server, self._items[0].asked, self._idle)
            self.memory_kib.setdefault(server.target.name, []).append(round(kib, 2))
            self._measure(server, self._idle)

    def _measure(self, server: Running, idle: int) -> None:
        for clients in CLIENTS:
            kept = measure(server, self._items, clients, WARMUP_S, self._duration_s)
            self.cells.add(server.target.name, row(clients, idle), kept)


FIGURES = (
    ("throughput", "answers/s by connections", 0),
    ("p50", "p50, ms", 2),
    ("p99", "p99, ms", 2),
    ("cpu_ms", "processor time an answer, ms in all of a server's processes", 3),
    ("cpu_share", "share of a core that the load generator used; near 1, it is the limit", 2),
)


def main() -> None:
    flags = make_parser(__doc__).parse_args()
    allow_descriptors(FIRST_HIGH + 2 * IDLE)
    section = Section("loop", "The loop alone", flags, ("uvloop", "mosec"))
    loop = Loop(flags)
    repeats = 1 if flags.quick else flags.repeats
    loop.cells.measure(TARGETS, flags.model, repeats, loop.measure)
    loop.cells.say(section, loop.rows, FIGURES)
    section.raw["memory_kib"] = loop.memory_kib
    memory = [f"{name} {spread(kib, 1)}" for name, kib in loop.memory_kib.items()]
    section.say(f"Memory an idle connection, KiB, all processes counted: {'; '.join(memory)}.")
    section.close()


if __name__ == "__main__":
    main()
