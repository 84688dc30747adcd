"""Sends mutated frames to a live server, beside clients that want answers.

    python -m benchmarks.fuzz_server --num_frames 100000

Exit code 0 if every frame got one reply, every honest answer was right and the server's
memory and descriptors are what they were, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from harness.live_fuzz import fuzz_server
from harness.process import MIB
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL

MAX_GROWTH_BYTES = 8 * MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_frames", type=int, default=100_000, help="frames to send")
    parser.add_argument("--frames_per_s", type=float, default=2000, help="how fast at most")
    parser.add_argument("--seed", type=int, default=1, help="what the frames depend on")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    with running_server(flags.model, *EXACT_ENGINE) as server:
        report = asyncio.run(fuzz_server(server, flags.num_frames, flags.frames_per_s, flags.seed))
    print(report)
    is_good = (
        report.num_replies == report.num_frames
        and not report.honest.errors
        and report.rss_after_bytes - report.rss_before_bytes < MAX_GROWTH_BYTES
        and report.descriptors_after <= report.descriptors_before
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
