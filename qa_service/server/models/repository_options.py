"""Which model and which collections are served where no file says more, and what holds for all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import MAX_COUNT

DEFAULT_MODEL = Path("saved_models/builtin")


class RepositoryOptions(Struct, frozen=True, kw_only=True):
    """Which model and collections are served, and options common to all models."""

    model: Annotated[
        Path,
        Meta(
            description="the model to serve: a prepared folder, or any model that prepare_model.py "
            "takes; not used if the file has [models.NAME]"
        ),
    ] = DEFAULT_MODEL
    prepare: Annotated[
        bool,
        Meta(description="prepare the model first, if it is not prepared yet"),
    ] = True
    collections_dir: Annotated[
        Path | None,
        Meta(
            description="folder of collections written by `qa-index`; each is served under its "
            "folder's name, unless `[collections.NAME]` has that name"
        ),
    ] = None
    poll_interval_s: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNT,
            description="seconds between two checks whether the file or a folder of versions has "
            "changed; 0 checks only at SIGHUP",
        ),
    ] = 0
    max_memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**50,
            description="bytes of memory that all instances may take; a version that does not fit "
            "is not loaded; 0 for no limit",
        ),
    ] = 0
