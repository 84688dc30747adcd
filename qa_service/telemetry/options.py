"""When the server counts as ready."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import MAX_MS


class HealthOptions(Struct, frozen=True, kw_only=True):
    """What health reports."""

    ready_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_MS,
            description="milliseconds after which an instance that is still busy no longer counts "
            "as answering",
        ),
    ] = 10_000
