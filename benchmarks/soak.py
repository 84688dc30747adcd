"""Loads a server for as long as you like and fails if it does not stay as it was.

    python -m benchmarks.soak --duration_s 3600

A mix of clients: requests at a steady rate, clients that come and go, and ones that break off or
send garbage.
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
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from harness.frames import frame, receive
from harness.live_fuzz import ENDLESS_S, fuzz_connection
from harness.load import QuietAnswers, under_load
from harness.mutate import Mutator
from harness.process import MIB, num_descriptors, rss_bytes
from harness.questions import ANSWER, ASK
from harness.server import RunningServer, engine_flags, running_server
from qa_service.programs.load.plan import Sample
from qa_service.programs.load.report import Report
from qa_service.server.models.options import DEFAULT_MODEL

WARMUP_S = 30.0
STEADY_CLIENTS = 4
QUESTIONS_A_VISIT = 3
VISIT_PAUSE_S = 0.3
GARBAGE_FRAMES = 100
GARBAGE_PAUSE_S = 0.5

MAX_RSS_GROWTH = 1.05
MAX_LATENCY_GROWTH = 1.25
"""Of the medians of the last quarter over those of the first: what else runs on the machine is
in the latency, and not in the memory."""


class Line(NamedTuple):
    """One interval: what the server's process holds, its workers too, and its right answers."""

    rss_mib: float
    workers_mib: float
    descriptors: int
    answers: int
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return "".join(f"{value:12.1f}" for value in self)


class Soak:
    """The load, and the account of it by interval."""

    def __init__(self, server: RunningServer, answers: QuietAnswers) -> None:
        self._server = server
        self._answers = answers
        self.num_sent = self.num_right = 0
        self.errors: Counter[str] = Counter()
        self.lines: list[Line] = []

    async def run(self, rate_per_s: float, duration_s: float, interval_s: float) -> None:
        """Loads the server for the duration, and takes a line each interval."""
        plan = self._answers.plan(STEADY_CLIENTS, ENDLESS_S, rate_per_s=rate_per_s)
        with under_load(plan) as samples:
            tasks = [asyncio.create_task(task) for task in (self._visit(), self._send_garbage())]
            await asyncio.sleep(min(WARMUP_S, duration_s / 10))
            self._close_interval(samples)
            started_s = time.perf_counter()
            print("".join(f"{name:>12}" for name in ("seconds", *Line._fields)), flush=True)
            while (elapsed_s := time.perf_counter() - started_s) < duration_s:
                await asyncio.sleep(min(interval_s, duration_s - elapsed_s))
                self.lines.append(self._close_interval(samples))
                print(f"{time.perf_counter() - started_s:12.0f}{self.lines[-1]}", flush=True)
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in failed:
                task.result()

    async def _visit(self) -> None:
        """Connects, asks a little and hangs up; every other time with a question in flight."""
        for breaks_off in itertools.cycle([True, False]):
            right = await asyncio.to_thread(self._ask_and_leave, breaks_off)
            self.num_sent += len(right)
            self.num_right += sum(right)
            await asyncio.sleep(VISIT_PAUSE_S)

    def _ask_and_leave(self, breaks_off: bool) -> list[bool]:
        """Runs in a thread; returns of each answer whether it was right."""
        right = []
        with self._server.connect() as sock:
            for _ in range(QUESTIONS_A_VISIT):
                sock.sendall(frame(ASK))
                right.append(receive(sock)["answer"] == ANSWER)
            if breaks_off:
                sock.sendall(frame(ASK))
        return right

    async def _send_garbage(self) -> None:
        mutator = Mutator(seed=1, expiring=True)
        while True:
            bodies = mutator.idle_bodies(GARBAGE_FRAMES)
            await fuzz_connection(self._server.port, bodies, mutator.broken_frame(), 0)
            await asyncio.sleep(GARBAGE_PAUSE_S)

    def _close_interval(self, samples: list[Sample]) -> Line:
        number = len(samples)  # more are added to the end meanwhile
        report = Report.of(samples[:number])
        del samples[:number]  # an hour of them would be our own leak
        self.num_sent += number
        self.num_right += report.num_answered
        self.errors.update(report.errors)
        pid = self._server.process.pid
        return Line(
            rss_bytes(pid) / MIB,
            sum(map(rss_bytes, self._server.worker_pids())) / MIB,
            num_descriptors(pid),
            report.num_answered,
            report.percentiles_ms[50],
            report.percentiles_ms[99],
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
        "rss_mib": MAX_RSS_GROWTH,
        "workers_mib": MAX_RSS_GROWTH,
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
    parser.add_argument("--rate", type=float, default=35.0, help="steady requests a second")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    parser.add_argument(
        "--engine", default="onnx:fp32", help="and precision: one whose answers stay, so not bf16"
    )
    flags = parser.parse_args()
    with running_server(flags.model, *engine_flags(flags.engine)) as server:
        soak = Soak(server, QuietAnswers(server.port))
        asyncio.run(soak.run(flags.rate, flags.duration_s, flags.interval_s))
        restarts = server.log.count(" ended (")
    print(f"{soak.num_sent} sent, {soak.num_right} right, workers that died: {restarts}")
    for code, number in soak.errors.items():
        print(f"{number} {code}")
    is_right = soak.num_sent == soak.num_right
    return 0 if is_flat(soak.lines) and is_right and not restarts else 1


if __name__ == "__main__":
    sys.exit(main())
