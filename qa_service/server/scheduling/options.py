"""The queue's options."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import MAX_COUNT, MAX_MS


class QueueOptions(Struct, frozen=True, kw_only=True):
    """The queue of requests that wait for an instance."""

    max_queue_size: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_COUNT,
            description="maximum number of requests that wait for an instance; also of those that "
            "wait for a search process, and with a cache of those that wait for an equal request",
        ),
    ] = 1000
    max_queue_cost_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_MS,
            description="milliseconds that the instances may need for all waiting requests; 0 for "
            "no limit",
        ),
    ] = 60_000
    max_queue_delay_us: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="microseconds a request may wait for batch members while an instance is "
            "idle",
        ),
    ] = 0

    @property
    def max_queue_delay_s(self) -> float:
        """`max_queue_delay_us` in seconds."""
        return self.max_queue_delay_us / 1e6

    @property
    def queue_cost_limit_ms(self) -> float:
        """`max_queue_cost_ms`; infinity for no limit."""
        return self.max_queue_cost_ms or math.inf
