"""Offers up to three times what the server can do, open loop, and prints what becomes of it.

    python -m benchmarks.overload --duration_s 20
    python -m benchmarks.overload --duration_s 20 --max_batch_size 1   # further flags: the server's

With `--realtime_clients` the clients do not wait for a core that the instances keep busy, as
clients on another machine would not.

Exit code 0 if every request was answered once, rightly or with `queue_full`, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.load import QuietAnswers
from harness.open_loop import HEADER, OpenLoopReport, capacity_per_s, offer
from harness.server import EXACT_ENGINE, RunningServer, running_server
from qa_service.repository.options import DEFAULT_MODEL
from qa_service.workers.devices import run_in_real_time

TIMES_CAPACITY = (0.5, 0.9, 1.0, 1.5, 2.0, 3.0)
NUM_CONNECTIONS = 50


def run(server: RunningServer, duration_s: float) -> tuple[float, list[OpenLoopReport]]:
    """Measures the capacity, and what becomes of each multiple of it; prints as it goes."""
    answers = QuietAnswers(server.port)
    capacity = capacity_per_s(answers, duration_s)
    print(f"closed loop: {capacity:.1f} answers/s\n   times {HEADER}", flush=True)
    reports = []
    for seed, times in enumerate(TIMES_CAPACITY):
        report = offer(
            answers,
            rate_per_s=times * capacity,
            duration_s=duration_s,
            num_connections=NUM_CONNECTIONS,
            seed=seed,
        )
        print(f"{times:8.1f} {report}", flush=True)
        reports.append(report)
    return capacity, reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=20.0, help="how long each rate")
    parser.add_argument("--max_queue_size", type=int, default=100, help="the server's")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    parser.add_argument("--realtime_clients", action="store_true", help="see above")
    flags, server_flags = parser.parse_known_args()
    server_flags += ["--max_queue_size", str(flags.max_queue_size)]
    if flags.realtime_clients:
        run_in_real_time()
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        capacity, reports = run(server, flags.duration_s)
    peak = max(report.goodput_per_s for report in reports)
    print(
        f"goodput at {TIMES_CAPACITY[-1]:g} times capacity: "
        f"{reports[-1].goodput_per_s / peak:.1%} of the peak; the queue's bound: "
        f"{flags.max_queue_size / capacity * 1e3:.0f} ms"
    )
    errors = {code for report in reports for code in report.admitted.errors}
    return 0 if errors <= {"queue_full"} else 1


if __name__ == "__main__":
    sys.exit(main())
