"""Prints what one frame of each kind, honest or hostile, costs the loop.

python -m benchmarks.frame_cost
"""

from __future__ import annotations

from tests.fault.frame_cost import cost_ms
from tests.fault.hostile_frames import HONEST, HOSTILE

SIZES_BYTES = (1 << 16, 1 << 18)


def main() -> None:
    print(f"{'milliseconds of the loop, by frame':40}{'64 KiB':>10}{'256 KiB':>10}  outcome")
    for name, make in {**HONEST, **{name: make for name, (make, _) in HOSTILE.items()}}.items():
        costs, outcomes = zip(*(cost_ms(make(size)) for size in SIZES_BYTES), strict=True)
        print(f"{name:40}{costs[0]:10.3f}{costs[1]:10.3f}  {' / '.join(dict.fromkeys(outcomes))}")


if __name__ == "__main__":
    main()
