"""Prints what one frame of each kind, honest or hostile, costs the loop.

python -m benchmarks.frame_cost
"""

from __future__ import annotations

import time

from harness.frames import frame
from harness.hostile_frames import HONEST, HOSTILE, OK
from qa_service.instance.worker_messages import Batch, encode
from qa_service.server.scheduling.request_cost import estimate_tokens
from qa_service.wire.frames import FrameReader
from qa_service.wire.json_codec import encode_error, parse_request
from qa_service.wire.messages import Cancel, Query, RejectedError, RequestLimits

TRIES = 7
SIZES_BYTES = (1 << 14, 1 << 16, RequestLimits().max_frame_bytes)


def handle(body: bytes) -> str:
    """What the loop does with a body: it parses it, and answers or passes it on."""
    try:
        request = parse_request(body)
    except RejectedError as rejected:
        encode_error(rejected.id_json, rejected.error)
        return rejected.error.code
    if isinstance(request, Query | Cancel):
        return OK
    estimate_tokens(request)
    encode(Batch(0, [request.as_task()]))
    return OK


def cost_ms(body: bytes) -> tuple[float, str]:
    """The minimum of some tries, in milliseconds, so that what else runs is not counted.

    Returns:
        The cost, and what became of the frame.
    """
    framed, costs_ms = frame(body), []
    for _ in range(TRIES):
        reader = FrameReader(RequestLimits().max_frame_bytes)
        reader.feed(framed)
        started_s = time.perf_counter()
        whole = reader.next_frame()
        assert whole is not None
        outcome = handle(whole)
        costs_ms.append((time.perf_counter() - started_s) * 1e3)
    return min(costs_ms), outcome


def costliest() -> tuple[str, bytes, float]:
    """The body that costs most before it is refused: its name, itself, milliseconds."""
    refused = {name: make for name, (make, outcome) in HOSTILE.items() if outcome != OK}
    bodies = {name: make(RequestLimits().max_frame_bytes) for name, make in refused.items()}
    costs_ms = {name: cost_ms(body)[0] for name, body in bodies.items()}
    name = max(costs_ms, key=costs_ms.__getitem__)
    return name, bodies[name], costs_ms[name]


def main() -> None:
    sizes = "".join(f"{f'{size / 1024:.0f} KiB':>10}" for size in SIZES_BYTES)
    print(f"{'milliseconds of the loop, by frame':38}{sizes}  outcome")
    for name, make in {**HONEST, **{name: make for name, (make, _) in HOSTILE.items()}}.items():
        costs_ms, outcomes = zip(*(cost_ms(make(size)) for size in SIZES_BYTES), strict=True)
        costs = "".join(f"{cost:10.3f}" for cost in costs_ms)
        print(f"{name:38}{costs}  {' / '.join(dict.fromkeys(outcomes))}")


if __name__ == "__main__":
    main()
