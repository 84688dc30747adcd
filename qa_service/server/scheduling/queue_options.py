"""The queue's options."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import Count


class QueueOptions(Struct, frozen=True, kw_only=True):
    """The queue of requests that wait for an instance."""

    max_queue_size: Annotated[
        Count,
        Meta(
            description="maximum number of requests that wait for an instance; also of those that "
            "wait for a search process, and with a cache of those that wait for an equal request"
        ),
    ] = 1000
    max_queue_delay_us: Annotated[
        int,
        Meta(ge=0, le=1_000_000,
             description="microseconds a request may wait for batch members while an instance is "
             "idle"),
    ] = 0  # fmt: skip
