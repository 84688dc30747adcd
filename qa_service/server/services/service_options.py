"""What can be set about routes, collections, searches, the cache and traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.errors import SetupError
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER
from qa_service.wire.messages import MAX_NAME_CHARS, MAX_PASSAGES

DEFAULT_ROUTE = "default"
"""The route of requests that name no model."""

NAME = rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}\Z"
"""What a model, a route or a label may be called: what stands in a path without being quoted."""


ModelName = Annotated[str, Meta(pattern=NAME)]


def check_name(name: str) -> None:
    """Raises `SetupError` if the name of a table is no `NAME`."""
    if not re.match(NAME, name):
        raise SetupError("a name has letters, digits, _, . and -")


class RouteOptions(Struct, frozen=True, kw_only=True):
    """Models that are asked in turn until a score is high enough."""

    cascade: Annotated[
        list[ModelName],
        Meta(min_length=1, max_length=8, title="a list of 1 to 8 models' names",
             description="the models to ask, in this order; each next one only if the score is "
             "below `min_score`"),
    ]  # fmt: skip
    min_score: Annotated[float, Meta(ge=0, le=1, description="the score that ends the cascade")] = (
        0.5
    )
    ask_next_if_unknown: Annotated[
        bool, Meta(description="whether the next model is asked if this one finds no answer")
    ] = False


class CollectionOptions(Struct, frozen=True, kw_only=True):
    """A collection of documents that answers questions in place of a text."""

    path: Annotated[
        Path | None, Meta(description="a folder that `qa-index` has written; this or `url`")
    ] = None
    url: Annotated[
        str,
        Meta(title="a string",
             description="an OpenSearch index, as http[s]://[USER:PASSWORD@]HOST:PORT/INDEX"),
    ] = ""  # fmt: skip
    max_passages: Annotated[
        int,
        Meta(ge=1, le=MAX_PASSAGES,
             description="the maximum of passages that are read for a question without "
             "`max_passages`: those nearly as good as the best"),
    ] = 8  # fmt: skip
    tokens: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]] | None,
        Meta(title="a list of names of tokens",
             description="the tokens that may ask and see it, by their `name` in "
             "`--auth_token_file`; if not given, every client"),
    ] = None  # fmt: skip

    def is_for(self, token: str | None) -> bool:
        """Whether the client with this name may ask it; None for anyone."""
        return token is None or self.tokens is None or token in self.tokens


class SearchOptions(Struct, frozen=True, kw_only=True):
    """Searches in collections, in separate processes."""

    encoder: Annotated[
        Path | None,
        Meta(
            description="folder of the encoder prepared by `prepare_model.py`, for collections "
            "with embeddings; if not given, `encoder` in the folder that the model is in, else "
            f"`{DEFAULT_ENCODER}`"
        ),
    ] = None


class CacheOptions(Struct, frozen=True, kw_only=True):
    """A cache of answers to equal requests."""

    cache_bytes: Annotated[
        int,
        Meta(ge=0, le=2**40,
             description="size of the response cache in bytes of memory; 0 disables the cache and "
             "the coalescing of equal requests in flight"),
    ] = 0  # fmt: skip


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
        Meta(ge=0, le=1,
             description="share of the requests without a traceparent that are traced; one with it "
             "is traced if its client's sampled flag says so"),
    ] = 1.0  # fmt: skip
