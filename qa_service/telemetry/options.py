"""Options of the server's health."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import Ms


class HealthOptions(Struct, frozen=True, kw_only=True):
    """When the server counts as ready."""

    ready_timeout_ms: Annotated[
        Ms,
        Meta(
            description="milliseconds after which an instance that is still busy no longer counts "
            "as answering",
        ),
    ] = 10_000
