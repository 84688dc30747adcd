"""Whether the server can be sent questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from qa_service.wire.http.model_reports import State

STARTING = "starting"
SERVING = "serving"

READY_TIMEOUT_S = 10.0
"""An instance that is busy for longer does not count as answering. Batches are of half a second at
most; only a very long text takes longer."""

CollectionState = Literal["READY", "LOADING", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Health:
    """The server's health, field by field as on the wire."""

    live: Annotated[bool, Meta(description="always true: the event loop runs")]
    ready: Annotated[bool, Meta(description="whether a question sent now is likely to be answered")]
    reason: Annotated[
        str | None, Meta(description="why it is not ready, as a sentence; null if it is")
    ]
    phase: Annotated[
        str,
        Meta(description="`starting` until every model is loaded, `serving`, `draining` or "
             "`stopping`"),
    ]  # fmt: skip
    sessions_alive: Annotated[
        int, Meta(description="instances that answered their warmup question and still live")
    ]
    sessions_answering: Annotated[int, Meta(description="those of them that are responsive")]
    sessions_wanted: Annotated[int, Meta(description="wanted instances, of all versions")]
    queue_length: Annotated[int, Meta(description="requests that wait for an instance")]
    model: Annotated[str, Meta(description="the default model; empty until it is loaded")]
    uptime_s: Annotated[float, Meta(description="seconds since the server's start")]
    version: Annotated[str, Meta(description="the server's")]
    models: Annotated[
        Mapping[str, State],
        Meta(description="the state of each version, by the model's name and the version"),
    ]
    failures: Annotated[
        Mapping[str, str],
        Meta(
            description="why a version could not be loaded, by model and version; empty if all were"
        ),
    ]
    collections: Annotated[
        Mapping[str, CollectionState],
        Meta(
            description="the state of each collection that the client may ask: `READY`, `LOADING` "
            "or `UNAVAILABLE`"
        ),
    ]
    collection_faults: Annotated[
        Mapping[str, str],
        Meta(
            description="faults by collection: why it, or its newest index, cannot be opened, or "
            "why a search failed in the last ten minutes; empty if there are none"
        ),
    ]
    reload_fault: Annotated[
        str | None,
        Meta(
            description="why the configuration or a folder of models could not be read again; null "
            "if nothing is wrong"
        ),
    ]


def why_not_ready(phase: str, sessions_alive: int, sessions_answering: int) -> str | None:
    """Why no question should be sent now; None if the server is ready.

    An instance counts as answering if it is idle, or has had its batch for no longer than
    `READY_TIMEOUT_S`. One is enough; so an idle server is ready, and one whose instances all hang
    is not.
    """
    if phase != SERVING:
        return f"the server is {phase}"
    if not sessions_alive:
        return "no instance is alive"
    if not sessions_answering:
        return f"no instance has answered for {READY_TIMEOUT_S:g} s"
    return None
