"""Options of tracing."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class TraceOptions(Struct, frozen=True, kw_only=True):
    """Spans of requests, for an OpenTelemetry receiver."""

    otlp_endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s/?#]+(/[^\s?#]*)?)?\Z",
            title="a URL as in http://localhost:4318",
            description="an OTLP receiver over HTTP, with or without its path /v1/traces, to which "
            "spans are sent; needs the extra otlp",
        ),
    ] = ""
    trace_sample_rate: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of the requests without a traceparent that are traced; one with it "
            "is traced if its client's sampled flag says so",
        ),
    ] = 1.0
