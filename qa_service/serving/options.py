"""What a file says of models, routes and collections: what is served; searches; the cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from qa_service.errors import SetupError
from qa_service.options import MAX_COUNT, MAX_MS
from qa_service.repository.models import MAX_VERSION, NUMBER, VERSIONS_WORDS
from qa_service.wire.messages import MAX_NAME_CHARS, MAX_PASSAGES
from qa_service.workers.options import InstanceOptions

NAME = rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}\Z"
"""What a model, a route or a label may be called: what stands in a path without being quoted."""
LABEL = rf"^[A-Za-z_][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}\Z"
"""A label does not begin with a digit, so that it is no number."""

ModelName = Annotated[str, Meta(pattern=NAME)]
_Number = Annotated[int, Meta(ge=1, le=MAX_VERSION)]
_Key = Annotated[str, Meta(pattern=rf"({NAME})|^{NUMBER}")]


def check_name(name: str) -> None:
    """Checks the name of a table.

    Raises:
        SetupError: It is no `NAME`.
    """
    if not re.match(NAME, name):
        raise SetupError("a name has letters, digits, _, . and -")


class ModelOptions(InstanceOptions, frozen=True, kw_only=True):
    """A model: where it is, which of its versions are served, and who gets which.

    Whatever `[instances]` has may stand here too, for this model alone.
    """

    path: Annotated[
        Path,
        Meta(
            description="a prepared folder, which is version 1, or a folder of such as 1/, 2/, 3/"
        ),
    ]
    versions: Annotated[
        # Without a pattern, which `choose_versions` checks: in a union it crashes msgspec 0.22.
        str | Annotated[list[_Number], Meta(min_length=1, max_length=64)],
        Meta(
            title=VERSIONS_WORDS,
            description="which versions are served, besides those that the tables below name",
        ),
    ] = "latest:1"
    labels: Annotated[
        dict[Annotated[str, Meta(pattern=LABEL)], _Number],
        Meta(
            max_length=64,
            title="a table of labels and the numbers of their versions",
            description="names that requests may use instead of a version's number",
        ),
    ] = field(default_factory=dict)
    traffic: Annotated[
        dict[_Key, Annotated[int, Meta(ge=0, le=1_000_000)]],
        Meta(
            max_length=64,
            title="a table of versions or labels and their weights, 0 to 1000000",
            description="shares of the requests that name no version; all go to the latest "
            "without it",
        ),
    ] = field(default_factory=dict)
    shadow: Annotated[
        dict[_Key, Annotated[int, Meta(ge=0, le=100)]],
        Meta(
            max_length=64,
            title="a table of versions or labels and percentages, 0 to 100",
            description="percent of the requests that are copied to a version on idle instances, "
            "to compare its answers",
        ),
    ] = field(default_factory=dict)
    transition: Annotated[
        Literal["swap", "rolling"],
        Meta(
            description="how a version takes another's place: swap loads all of its instances "
            "first, rolling has one instance more than before at a time"
        ),
    ] = "swap"

    @property
    def instances(self) -> InstanceOptions:
        """The part that is about instances."""
        return InstanceOptions(**{n: getattr(self, n) for n in InstanceOptions.__struct_fields__})


class RouteOptions(Struct, frozen=True, kw_only=True):
    """Models that are asked in turn until one is sure enough."""

    cascade: Annotated[
        list[ModelName],
        Meta(
            min_length=1,
            max_length=8,
            title="a list of 1 to 8 models' names",
            description="the models to ask, in their order; the next one only where this one's "
            "score is below `min_score`",
        ),
    ]
    min_score: Annotated[float, Meta(ge=0, le=1, description="the score that ends the cascade")] = (
        0.5
    )
    ask_next_if_unknown: Annotated[
        bool, Meta(description="whether the next model is asked where this one finds no answer")
    ] = False


class CollectionOptions(Struct, frozen=True, kw_only=True):
    """A collection of documents that questions may be asked of, in place of a text."""

    path: Annotated[
        Path | None, Meta(description="a folder that `qa-index` has written; this or `url`")
    ] = None
    url: Annotated[
        str,
        Meta(
            title="a string",
            description="an OpenSearch index, as http[s]://[USER:PASSWORD@]HOST:PORT/INDEX",
        ),
    ] = ""
    max_passages: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_PASSAGES,
            description="passages that are read for a question which does not say how many",
        ),
    ] = 10


class SearchOptions(Struct, frozen=True, kw_only=True):
    """Searches in collections and in skimmed texts: processes beside the loop."""

    search_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=MAX_MS,
            description="milliseconds that a search may take, and a third of those that the "
            "opening of a collection may; then its process is replaced",
        ),
    ] = 10_000
    max_queued_searches: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_COUNT,
            description="requests that may wait for each search process",
        ),
    ] = 256
    max_search_processes: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="search processes for all collections on disk: one each, and further "
            "collections share them",
        ),
    ] = 16

    @property
    def search_timeout_s(self) -> float:
        """`search_timeout_ms` in seconds."""
        return self.search_timeout_ms / 1e3


class CacheOptions(Struct, frozen=True, kw_only=True):
    """Answers kept for whoever asks the same of the same text."""

    cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**40,
            description="bytes of memory for answers; 0 keeps none, and runs equal requests that "
            "are in flight together each for itself",
        ),
    ] = 0
    max_joined_requests: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="requests to a version that may wait for the runs of equal ones; more are "
            "run each for itself",
        ),
    ] = 1000
