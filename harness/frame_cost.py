"""What handling one frame costs the loop."""

from __future__ import annotations

import time

from harness.frames import frame
from harness.hostile_frames import OK
from qa_service.scheduling.request_cost import estimate_tokens
from qa_service.wire.frames import FrameReader
from qa_service.wire.json_codec import encode_error
from qa_service.wire.json_codec import parse_request as parse
from qa_service.wire.messages import Query, RejectedError, RequestLimits
from qa_service.workers.messages import Batch, encode

LIMITS = RequestLimits()
TRIES = 7
MAX_FRAME_BYTES = LIMITS.max_frame_bytes


def handle(body: bytes) -> str:
    """What the loop does with a body: it parses it, and answers or passes it on."""
    try:
        request = parse(body, LIMITS)
    except RejectedError as rejected:
        encode_error(rejected.id_json, rejected.error)
        return rejected.error.code
    if isinstance(request, Query):
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
        reader = FrameReader(LIMITS.max_frame_bytes)
        reader.feed(framed)
        started_s = time.perf_counter()
        outcome = handle(reader.next_frame())
        costs_ms.append((time.perf_counter() - started_s) * 1e3)
    return min(costs_ms), outcome
