"""Sends mutated HTTP requests to a live server.

    python -m benchmarks.fuzz_http --num_requests 100000

Exit code 0 if each got a reply, or an end where it was none, and the server's memory and
descriptors are what they were; 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from harness.http_fuzz import fuzz
from harness.process import MIB, num_descriptors, rss_bytes
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL

MAX_GROWTH_BYTES = 8 * MIB
FLAGS = ("--inference_engine_type", "instant", "--max_frame_bytes", "100000",
         "--frame_timeout_ms", "50", "--idle_timeout_ms", "3000")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_requests", type=int, default=100_000, help="requests to send")
    parser.add_argument("--seed", type=int, default=1, help="what the requests depend on")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    with running_server(flags.model, *EXACT_ENGINE, *FLAGS) as server:
        pid = server.process.pid
        asyncio.run(fuzz(server.port, 2000, flags.seed + 1))
        before, descriptors, started_s = rss_bytes(pid), num_descriptors(pid), time.perf_counter()
        report = asyncio.run(fuzz(server.port, flags.num_requests, flags.seed))
        duration_s, after = time.perf_counter() - started_s, rss_bytes(pid)
        left = num_descriptors(pid) - descriptors
    print(report)
    print(
        f"{duration_s:.0f} s; RSS {before / MIB:.1f} MiB before, {after / MIB:.1f} MiB after; "
        f"{left} descriptors more"
    )
    return 0 if not report.num_silent and after - before < MAX_GROWTH_BYTES and left <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
