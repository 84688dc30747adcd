"""Options of what is served: of models in general, and of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from qa_service.files import SAVED_MODELS, saved_models
from qa_service.instance.instance_options import InstanceOptions
from qa_service.options import OptionalCount
from qa_service.server.models.on_disk import MAX_VERSION, NUMBER, VERSIONS_WORDS
from qa_service.server.services.service_options import NAME
from qa_service.wire.messages import MAX_NAME_CHARS

DEFAULT_MODEL = SAVED_MODELS / "builtin"

LABEL = rf"^[A-Za-z_][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}\Z"
"""A label does not begin with a digit, so that it is no number."""

_Number = Annotated[int, Meta(ge=1, le=MAX_VERSION)]
_Key = Annotated[str, Meta(pattern=rf"({NAME})|^{NUMBER}")]


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
        bool, Meta(description="prepare the model first, if it is not prepared yet")
    ] = True
    saved_models: Annotated[
        Path | None,
        Meta(
            description="folder in which models are prepared and looked for by their names; if not "
            "given, `saved_models` of the working directory if it has one, else `qa-server` in the "
            "user's folder of data (`XDG_DATA_HOME`, `~/.local/share`)"
        ),
    ] = None
    collections_dir: Annotated[
        Path | None,
        Meta(
            description="folder of collections written by `qa-index`; each is served under its "
            "folder's name, unless `[collections.NAME]` has that name"
        ),
    ] = None
    poll_interval_s: Annotated[
        OptionalCount,
        Meta(
            description="seconds between two checks whether the file or a folder of versions has "
            "changed; 0 checks only at SIGHUP"
        ),
    ] = 0
    max_memory_bytes: Annotated[
        int,
        Meta(ge=0, le=2**50,
             description="bytes of memory that all instances may take; a version that does not fit "
             "is not loaded; 0 for no limit"),
    ] = 0  # fmt: skip

    @property
    def models_dir(self) -> Path:
        return self.saved_models or saved_models()


class ModelOptions(InstanceOptions, frozen=True, kw_only=True):
    """A model: where it is, which of its versions are served, and who gets which.

    Whatever `[instances]` has may stand here too, for this model alone.
    """

    path: Annotated[
        Path,
        Meta(
            description="a prepared folder, which is version 1, or a folder with versions 1/, 2/, "
            "3/"
        ),
    ]
    versions: Annotated[
        # Without a pattern, which `choose_versions` checks: in a union it crashes msgspec 0.22.
        str | Annotated[list[_Number], Meta(min_length=1, max_length=64)],
        Meta(
            title=VERSIONS_WORDS,
            description="the versions to serve, in addition to those in the tables below",
        ),
    ] = "latest:1"
    labels: Annotated[
        dict[Annotated[str, Meta(pattern=LABEL)], _Number],
        Meta(max_length=64, title="a table of labels and the numbers of their versions",
             description="names that requests may use instead of a version's number"),
    ] = field(default_factory=dict)  # fmt: skip
    traffic: Annotated[
        dict[_Key, Annotated[int, Meta(ge=0, le=1_000_000)]],
        Meta(max_length=64, title="a table of versions or labels and their weights, 0 to 1000000",
             description="shares of the requests without a version; by default all go to the "
             "latest version"),
    ] = field(default_factory=dict)  # fmt: skip
    shadow: Annotated[
        dict[_Key, Annotated[int, Meta(ge=0, le=100)]],
        Meta(max_length=64, title="a table of versions or labels and percentages, 0 to 100",
             description="percent of the requests that are copied to a version on idle instances, "
             "to compare its answers"),
    ] = field(default_factory=dict)  # fmt: skip
    transition: Annotated[
        Literal["swap", "rolling"],
        Meta(
            description="how a version replaces another: swap loads all of its instances first, "
            "rolling has one instance more than before at a time"
        ),
    ] = "swap"

    @property
    def instances(self) -> InstanceOptions:
        return InstanceOptions(**{n: getattr(self, n) for n in InstanceOptions.__struct_fields__})
