"""Kills a worker every second under load and accounts for every request.

    python -m benchmarks.fault_kill --duration_s 60 --num_clients 50

Exit code 0 if every request was answered once and right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.disturbances import kill_workers, load_during
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=60.0, help="how long")
    parser.add_argument("--interval_s", type=float, default=1.0, help="from kill to kill")
    parser.add_argument("--num_clients", type=int, default=50, help="clients at a time")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    parser.add_argument(
        "--wait_until_whole", action="store_true", help="kill none while another is replaced"
    )
    flags = parser.parse_args()
    killed: list[int] = []
    with running_server(flags.model, *EXACT_ENGINE) as server:
        killing = kill_workers(
            server, killed, interval_s=flags.interval_s, wait_until_whole=flags.wait_until_whole
        )
        report = load_during(killing, server, flags.num_clients, flags.duration_s)
        server.wait()
    print(f"{len(killed)} workers killed in {flags.duration_s:g} s\n{report}")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
