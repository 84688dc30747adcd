"""Prints what one frame of each kind, honest or hostile, costs the loop.

python -m benchmarks.frame_cost
"""

from __future__ import annotations

from harness.frame_cost import MAX_FRAME_BYTES, cost_ms
from harness.hostile_frames import HONEST, HOSTILE

SIZES_BYTES = (1 << 14, 1 << 16, MAX_FRAME_BYTES)


def main() -> None:
    sizes = "".join(f"{f'{size / 1024:.0f} KiB':>10}" for size in SIZES_BYTES)
    print(f"{'milliseconds of the loop, by frame':38}{sizes}  outcome")
    for name, make in {**HONEST, **{name: make for name, (make, _) in HOSTILE.items()}}.items():
        costs_ms, outcomes = zip(*(cost_ms(make(size)) for size in SIZES_BYTES), strict=True)
        costs = "".join(f"{cost:10.3f}" for cost in costs_ms)
        print(f"{name:38}{costs}  {' / '.join(dict.fromkeys(outcomes))}")


if __name__ == "__main__":
    main()
