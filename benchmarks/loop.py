"""The loop alone: requests a second with the engine that answers at once, and memory.

    python -m benchmarks.loop --questions_file dev.json

Beside this server: an asyncio server on uvloop over the same frames, once answering in its own
process and once through worker processes over a socketpair each, as the server does; and mosec.
All parse with msgspec, answer with the text's first word, and have two workers where they have
any. Each is started again in each repeat, takes all rows, then 5,000 further connections that have
asked one question each and stay idle, then all rows again.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import sys
import time
from contextlib import ExitStack

from benchmarks.cells import Cells, measure
from benchmarks.peers import rounds
from benchmarks.record import Section, make_parser
from benchmarks.tables import spread
from benchmarks.targets import MOSEC, NotStartedError, Running, Target, ours, peer, running
from benchmarks.texts import uniform
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.load.wire import QaWire

IDLE = 5000
FIRST_HIGH = 2048
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


def open_idle(stack: ExitStack, server: Running, asked: SquadQuestion, number: int) -> None:
    """Opens connections that ask one question each and are then silent.

    Their descriptors are high: the load generator waits with `select`, which knows 1,024.
    """
    for _ in range(number):
        with server.connect() as sock:
            server.ask(asked, sock)
            high = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH)
        stack.callback(os.close, high)


class Loop:
    """All targets, all rows."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._model = flags.model
        self._items = uniform(read_squad(flags.questions_file))[:500]
        self._idle = 200 if flags.quick else IDLE
        self._duration_s = 0.3 if flags.quick else DURATION_S
        self.cells = Cells()
        self.memory: dict[str, list[float]] = {}
        self.absent: dict[str, str] = {}

    @property
    def rows(self) -> list[str]:
        return [row(clients, idle) for idle in (0, self._idle) for clients in CLIENTS]

    def measure(self, target: Target, repeat: int) -> None:
        if target.name in self.absent:
            return
        started_s = time.perf_counter()
        try:
            with running(target, self._model) as server, ExitStack() as stack:
                self._measure_all(server, stack)
        except (NotStartedError, RuntimeError, OSError) as error:
            self.absent[target.name] = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started_s
        print(f"repeat {repeat}, {target.name}: {seconds:.0f} s", flush=True)

    def _measure_all(self, server: Running, stack: ExitStack) -> None:
        self._measure(server, 0)
        before_bytes = server.rss_bytes()
        open_idle(stack, server, self._items[0].asked, self._idle)
        kib = (server.rss_bytes() - before_bytes) / self._idle / 1024
        self.memory.setdefault(server.target.name, []).append(round(kib, 2))
        self._measure(server, self._idle)

    def _measure(self, server: Running, idle: int) -> None:
        for clients in CLIENTS:
            kept = measure(server, self._items, clients, WARMUP_S, self._duration_s)
            self.cells.add(server.target.name, row(clients, idle), kept)


def report(section: Section, loop: Loop) -> None:
    for name, error in loop.absent.items():
        section.say(f"{name} did not take part: {error}")
    for name, label, digits in (
        ("throughput", "answers/s by connections", 0),
        ("p50", "p50, ms", 2),
        ("p99", "p99, ms", 2),
        ("cpu_ms", "processor time an answer, ms in all of a server's processes", 3),
        ("cpu_share", "share of a core that the load generator used", 2),
    ):
        section.say(f"**{label}**\n\n" + loop.cells.table("", loop.rows, name, digits))
    memory = [f"{name} {spread(kib, 1)}" for name, kib in loop.memory.items()]
    section.say(f"Memory an idle connection, KiB, all processes counted: {'; '.join(memory)}.")
    section.say(
        f"Failed requests: at most {loop.cells.worst('failed'):.0f} in a cell. Server, workers "
        "and load share the cores: where the generator's share nears 1, it is the limit."
    )


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    section = Section("loop", "The loop alone", flags, ("uvloop", "mosec"))
    loop = Loop(flags)
    for repeat, target in rounds(TARGETS, 1 if flags.quick else flags.repeats):
        loop.measure(target, repeat)
    section.raw |= {"cells": loop.cells.raw(), "memory_kib": loop.memory, "absent": loop.absent}
    report(section, loop)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
