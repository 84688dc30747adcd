"""Feeds random and mutated frames to the decoder; stops at the first that it does not survive.

python -m benchmarks.fuzz_decoder --num_frames 1000000
"""

from __future__ import annotations

import argparse
import sys
import time

from harness.decoder import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_frames", type=int, default=1_000_000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="what they depend on")
    flags = parser.parse_args()
    started_s = time.perf_counter()
    num_valid = fuzz(flags.num_frames, flags.seed)
    print(
        f"{flags.num_frames} frames in {time.perf_counter() - started_s:.1f} s, "
        f"{num_valid} of them still requests; no other outcome than a request or an error"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
