"""Reloads the model at random moments under load and accounts for every request.

    python -m benchmarks.fault_reload --duration_s 60 --num_clients 20

Exit code 0 if every request was answered once and right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.disturbances import load_during, reload_at_random
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=60.0, help="how long")
    parser.add_argument("--max_s", type=float, default=1.0, help="from SIGHUP to SIGHUP at most")
    parser.add_argument("--seed", type=int, default=1, help="what the moments depend on")
    parser.add_argument("--num_clients", type=int, default=20, help="clients at a time")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    sent: list[int] = []
    with running_server(flags.model, *EXACT_ENGINE) as server:
        reloading = reload_at_random(server, sent, seed=flags.seed, max_s=flags.max_s)
        report = load_during(reloading, server, flags.num_clients, flags.duration_s)
        server.wait()
        num_reloads = server.log.count("the reloaded model serves")
    print(f"{len(sent)} SIGHUP and {num_reloads} reloads in {flags.duration_s:g} s\n{report}")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
