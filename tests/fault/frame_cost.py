"""What handling one frame costs the loop: shared with `benchmarks/frame_cost.py`."""

from __future__ import annotations

import time

from qa_service.config import ServerConfig
from qa_service.protocol import FrameReader, Query, RejectedError, encode_error
from qa_service.protocol import parse_request as parse
from qa_service.scheduler import estimate_tokens
from qa_service.workers.channel import Batch, encode
from tests.fault.hostile_frames import OK
from tests.support import frame

LIMITS = ServerConfig().connection_limits.request
MAX_FRAME_BYTES = ServerConfig().max_frame_bytes
TRIES = 7


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
    encode(Batch(0, [request.as_question()]))
    return OK


def cost_ms(body: bytes) -> tuple[float, str]:
    """The least of some tries, in milliseconds, so that what else runs is not counted.

    Returns:
        The cost, and what became of the frame.
    """
    framed, costs_ms = frame(body), []
    for _ in range(TRIES):
        reader = FrameReader(MAX_FRAME_BYTES)
        reader.feed(framed)
        started_s = time.perf_counter()
        outcome = handle(reader.next_frame())
        costs_ms.append((time.perf_counter() - started_s) * 1e3)
    return min(costs_ms), outcome
