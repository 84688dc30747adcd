"""Loads a server for as long as you like and fails if it does not stay as it was.

    python -m benchmarks.soak --duration_s 3600

A mix of clients: steady ones, ones that come and go, and ones that break off or send garbage.
Each interval prints a line; at the end the first quarter is held against the last. Exit code 0
if memory, descriptors and latency stayed flat and every answer was right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from qa_service.config import DEFAULT_MODEL
from tests.fault.live_fuzz import fuzz_connection
from tests.fault.load import Asked, LoadClient, Tally, ask_quietly
from tests.fault.mutate import Mutator
from tests.fault.process import MIB, num_descriptors, rss_bytes
from tests.running_server import RunningServer, running_server

WARMUP_S = 30.0
STEADY_CLIENTS = 4
QUESTIONS_A_VISIT = 3
GARBAGE_FRAMES = 100
GARBAGE_PAUSE_S = 0.5

MAX_RSS_GROWTH = 1.05
MAX_LATENCY_GROWTH = 1.25
"""Of the medians of the last quarter over those of the first: what else runs on the machine is
in the latency, and not in the memory."""


@dataclass(frozen=True, slots=True)
class Line:
    """One interval.

    Attributes:
        rss_bytes: Of the server's process.
        workers_rss_bytes: Of its workers together.
        descriptors: Of the server's process, and so one for each connection.
        answers: Right answers.
        p50_ms: Median latency.
        p99_ms: 99th percentile.
    """

    rss_bytes: int
    workers_rss_bytes: int
    descriptors: int
    answers: int
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.rss_bytes / MIB:9.1f} {self.workers_rss_bytes / MIB:11.1f} "
            f"{self.descriptors:11d} {self.answers:7d} {self.p50_ms:8.1f} {self.p99_ms:8.1f}"
        )


HEADER = (
    f"{'seconds':>8} {'RSS MiB':>9} {'workers MiB':>11} {'descriptors':>11} {'answers':>7} "
    f"{'p50 ms':>8} {'p99 ms':>8}"
)


class Soak:
    """The load, and the account of it by interval."""

    def __init__(self, server: RunningServer, questions: list[Asked], pause_s: float) -> None:
        self._server = server
        self._pause_s = pause_s
        self._questions = questions
        self.total = Tally()
        self._tally = Tally()
        self.lines: list[Line] = []

    async def run(self, duration_s: float, interval_s: float) -> None:
        """Loads the server for the duration, and takes a line each interval."""
        players = [self._ask_steadily() for _ in range(STEADY_CLIENTS)]
        tasks = [asyncio.create_task(p) for p in (*players, self._visit(), self._send_garbage())]
        await asyncio.sleep(min(WARMUP_S, duration_s / 10))
        self._close_interval()
        started_s = time.perf_counter()
        print(HEADER, flush=True)
        while (elapsed_s := time.perf_counter() - started_s) < duration_s:
            await asyncio.sleep(min(interval_s, duration_s - elapsed_s))
            line = self._close_interval()
            self.lines.append(line)
            print(f"{time.perf_counter() - started_s:8.0f} {line}", flush=True)
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in failed:
            task.result()

    async def _ask_steadily(self) -> None:
        client = await self._client()
        for asked in itertools.cycle(self._questions):
            await self._ask(client, asked)
            await asyncio.sleep(self._pause_s)

    async def _visit(self) -> None:
        """Connects, asks a little and hangs up; every other time with a question in flight."""
        for asked, breaks_off in zip(
            itertools.cycle(self._questions), itertools.cycle([True, False]), strict=False
        ):
            client = await self._client()
            for _ in range(QUESTIONS_A_VISIT):
                await self._ask(client, asked)
                await asyncio.sleep(self._pause_s)
            if breaks_off:
                await client.abandon(asked)
            await client.close()

    async def _send_garbage(self) -> None:
        mutator = Mutator(seed=1, expiring=True)
        while True:
            bodies = mutator.idle_bodies(GARBAGE_FRAMES)
            await fuzz_connection(self._server.port, bodies, mutator.broken_frame(), 0)
            await asyncio.sleep(GARBAGE_PAUSE_S)

    async def _client(self) -> LoadClient:
        client = LoadClient(self.total)
        await client.connect(self._server.port)
        return client

    async def _ask(self, client: LoadClient, asked: Asked) -> None:
        started_s = time.perf_counter()
        reply = await client.ask(asked)
        if reply and "error" not in reply:
            self._tally.latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    def _close_interval(self) -> Line:
        tally, self._tally = self._tally, Tally()
        self.total.latencies_ms.clear()  # an hour of them would be our own leak
        pid = self._server.process.pid
        return Line(
            rss_bytes(pid),
            sum(map(rss_bytes, self._server.worker_pids())),
            num_descriptors(pid),
            len(tally.latencies_ms),
            tally.p_ms(50),
            tally.p_ms(99),
        )


def growth(lines: list[Line], name: str) -> float:
    """The median of the last quarter over that of the first."""
    quarter = max(1, len(lines) // 4)
    first, last = (
        statistics.median(getattr(line, name) for line in part)
        for part in (lines[:quarter], lines[-quarter:])
    )
    return last / first


def is_flat(lines: list[Line]) -> bool:
    """Prints how each figure grew; says whether all stayed within their limits."""
    limits = {
        "rss_bytes": MAX_RSS_GROWTH,
        "workers_rss_bytes": MAX_RSS_GROWTH,
        "descriptors": 1.0,
        "p50_ms": MAX_LATENCY_GROWTH,
        "p99_ms": MAX_LATENCY_GROWTH,
    }
    grown = {name: growth(lines, name) for name in limits}
    print(", ".join(f"{name} x {factor:.3f}" for name, factor in grown.items()))
    return all(grown[name] <= limit for name, limit in limits.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=3600.0, help="how long")
    parser.add_argument("--interval_s", type=float, default=60.0, help="from line to line")
    parser.add_argument("--pause_s", type=float, default=0.1, help="of a client between questions")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    with running_server(flags.model) as server:
        soak = Soak(server, ask_quietly(server.port), flags.pause_s)
        asyncio.run(soak.run(flags.duration_s, flags.interval_s))
        restarts = server.log.count(" died with ")
    print(f"{soak.total.sent} sent, {soak.total.right} right, sessions that died: {restarts}")
    is_right = soak.total.sent - soak.total.right <= STEADY_CLIENTS + 1  # in flight at the end
    return 0 if is_flat(soak.lines) and is_right and not restarts else 1


if __name__ == "__main__":
    sys.exit(main())
