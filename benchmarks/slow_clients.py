"""Honest clients beside 500 that send a byte a second and one that never reads.

    python -m benchmarks.slow_clients --duration_s 20

Exit code 0 if every honest answer was right, 1 otherwise; the ratio of the p99s is for reading.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from harness.crowd import beside_a_crowd
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=20.0, help="how long, each time")
    parser.add_argument("--num_honest", type=int, default=10, help="honest clients")
    parser.add_argument("--num_slow", type=int, default=500, help="slow clients")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    with running_server(flags.model, *EXACT_ENGINE) as server:
        report = asyncio.run(
            beside_a_crowd(server, flags.num_honest, flags.num_slow, flags.duration_s)
        )
    print(report)
    return 1 if report.crowded.errors else 0


if __name__ == "__main__":
    sys.exit(main())
