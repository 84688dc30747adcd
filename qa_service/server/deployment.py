"""From the configuration to what is served: at the start, at SIGHUP, and when a file has changed.

file, flags, folders ──read──▶ a plan ──apply──▶ models and routes
├─a fault─▶ said where; nothing changes
└─an unmeasured engine─▶ measured in a separate process, then applied (`EngineChoices`)

While the server serves, a thread reads, since a mount may hang. A look that hangs is waited for,
but a SIGHUP begins another. A poll reads a file that has been still since the poll before: an
editor may be writing it.

At the start, what `--model` names may have to be prepared first, by a child (`Preparing`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from qa_service.errors import SetupError, error_context
from qa_service.files import Stamp, stamp_of
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.net.event_loop import EventLoop
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS, Readings
from qa_service.retrieval.encoder_folder import encoder_folder
from qa_service.server.config import ConfigSource, ServerConfig, changed_options
from qa_service.server.models.catalog import Catalog
from qa_service.server.models.engine_choices import EngineChoices
from qa_service.server.models.plan import ModelPlan, Plan, make_plan, plan_only_model
from qa_service.server.models.preparing import Preparing, served_folder, source_to_prepare
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.router import Router
from qa_service.server.services.service_options import CollectionOptions, check_name

logger = logging.getLogger(__name__)


class _Look(msgspec.Struct, frozen=True):
    """What a look has found.

    Attributes:
        credentials: The stamps of the files of certificates and tokens.
    """

    config: ServerConfig
    plan: Plan
    generation: int
    credentials: Sequence[Stamp]


def collections_of(config: ServerConfig) -> Mapping[str, CollectionOptions]:
    """The named collections; raises `SetupError` if one needs a token and no client has any."""
    for name, options in config.collections.items():
        if options.tokens is not None and config.auth.auth_token_file is None:
            raise SetupError(f"[collections.{name}] tokens: needs --auth_token_file")
    return config.collections


def encoder_of(config: ServerConfig) -> Path:
    """The folder of the encoder that embeds questions to collections."""
    models = [model.path for model in config.models.values()]
    return encoder_folder(config.search.encoder, models or [served_folder(config.repository)])


@dataclass(eq=False)
class Deployment:
    """Keeps what is served as the configuration has it.

    Attributes:
        fault: Why the configuration or a folder could not be read again; empty if it could.
        failure: Why the server cannot start; empty if that is not known.
    """

    config: ServerConfig
    source: ConfigSource
    loop: EventLoop
    catalog: Catalog
    router: Router
    engines: EngineChoices
    collections: CollectionSet

    def __post_init__(self) -> None:
        self._generation = 0
        self._only_name = ""
        self.fault = self.failure = ""
        self._waiting: list[str] = []
        self._preparing: Preparing | None = None
        self._named = set(self.config.models)
        """The models that the file named when it was applied last."""
        self._names_models = bool(self.config.models)
        tls, tokens = self.config.tls, self.config.auth.auth_token_file
        files = (tls.tls_cert, tls.tls_key, tls.tls_client_ca, tokens)
        self._credential_files = [path for path in files if path]
        self._credentials = self._stamp_credentials()
        self._stamp = self.source.stamp()
        self._looks: Readings[_Look | None] = Readings(
            self.loop,
            self._note_fault,
            too_many=f"{MAX_READINGS} looks at the configuration and the models hang",
            hanging="the configuration and the folders of models could not be read for "
            f"{HANGS_AFTER_S:g} s: one of them hangs",
        )

    def start(self) -> None:
        """Loads all at once, but versions whose engines must be measured; or a `SetupError`."""
        its = self.config.repository
        if self.config.models or not (source := source_to_prepare(its)):
            self._begin()
            return
        name = its.model.name  # until its manifest says it
        self.catalog.apply(Plan({name: ModelPlan(name)}, {}))

        def on_prepared(failure: str) -> None:
            self._preparing, self.failure = None, failure
            try:
                if not failure:
                    self._begin()
            except SetupError as error:
                self.failure = str(error)
            self.loop.mark()

        self._preparing = Preparing(self.loop, source, its.models_dir, on_prepared)

    def _begin(self) -> None:
        plan = self._plan(self.config, self._generation)
        self._use_collections(self.config)
        self._apply(plan)
        self._poll()

    @property
    def has_started(self) -> bool:
        """Whether nothing has to be prepared any more."""
        return self._preparing is None

    def close(self) -> None:
        if self._preparing:
            self._preparing.close()

    def follow(self) -> None:
        """Loads what has been measured, and moves routes to what has been loaded.

        Measures what is left when nothing is being loaded.
        """
        if not self.engines.is_serving:
            for spec in (spec for its in self.catalog.by_name.values() for spec in its.failures):
                self.engines.reject(spec.found, spec.asked or spec.instances)
        plan = self.catalog.plan.with_engines(self.engines.choose)
        if plan != self.catalog.plan:
            self._apply(plan)
        self.router.use(self.catalog.routes)
        if not self.catalog.is_loading:
            self.engines.measure_next()

    def end_start(self) -> None:
        """From now on the likeliest engines are measured, and those of no new version."""
        self.engines.is_serving = True
        self.loop.mark()

    def reload(self, *, is_asked: bool = True) -> None:
        """Reads the configuration again and applies what has changed; if it is asked for, at once.

        A model that no file names is loaded again, unless certificates or tokens have changed: the
        reload is for those. What could not be loaded is tried again at once.
        """
        self._looks.start(
            partial(self._read, is_asked=is_asked), partial(self._on_read, is_asked=is_asked)
        )

    def _read(self, *, is_asked: bool) -> _Look | None:
        """In a thread. Nothing else chooses engines while the server serves.

        Returns:
            None if the file is not still.
        """
        before, self._stamp = self._stamp, self.source.stamp()
        if self._stamp != before and not is_asked:
            return None
        config = self.source.read()
        missing = sorted(self._named - config.models.keys())
        if len(config.models) < len(self._named) and not self.source.lists_models():
            raise SetupError(  # the file may be written only in part
                f"{self.source.file} has fewer models than before: {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing; a line [models] says that this "
                "is meant"
            )
        credentials = self._stamp_credentials()
        is_again = is_asked and credentials == self._credentials
        generation = self._generation + is_again
        return _Look(config, self._plan(config, generation), generation, credentials)

    def _stamp_credentials(self) -> Sequence[Stamp]:
        return [stamp_of(path) for path in self._credential_files]

    def _on_read(self, found: _Look | Exception | None, *, is_asked: bool) -> None:
        if found is None:
            return
        try:
            if isinstance(found, Exception):
                raise found
            self._use_collections(found.config)
            if found.plan != self.catalog.plan:
                self._apply(found.plan)
        except (SetupError, OSError) as error:
            self._note_fault(str(error))
            return
        self.fault = ""
        self._generation, self._credentials = found.generation, found.credentials
        self._names_models |= bool(found.config.models)
        self._named = set(found.config.models)
        ours = {"[repository] model"}
        ours |= {f"[instances] {name}" for name in found.config.instances.__struct_fields__}
        waiting = [name for name in changed_options(self.config, found.config) if name not in ours]
        if waiting and waiting != self._waiting:
            logger.warning("a restart is needed to apply: %s", ", ".join(waiting))
        self._waiting = waiting
        if is_asked:
            for model in self.catalog.by_name.values():
                model.try_again()

    def _note_fault(self, fault: str) -> None:
        if fault != self.fault:
            logger.error("reload failed, configuration unchanged: %s", fault)
        self.fault = fault

    def _use_collections(self, config: ServerConfig) -> None:
        self.collections.use(collections_of(config), config.repository.collections_dir)

    def _apply(self, plan: Plan) -> None:
        self.catalog.apply(plan)
        self.router.use(self.catalog.routes)

    def _plan(self, config: ServerConfig, generation: int) -> Plan:
        if not config.models and not self._names_models:  # the one model is given by flags
            if config.routes:
                raise SetupError(f"{self.source.file}: [routes] needs [models.NAME]")
            folder = served_folder(config.repository)
            name = self._only_name = self._only_name or load_manifest(folder).name
            return plan_only_model(folder, config.instances, self.engines.choose, generation, name)
        with error_context(str(self.source.file)):
            for name in config.models:
                with error_context(f"[models.{name}]"):
                    check_name(name)
            return make_plan(config.models, config.routes, self.engines.choose)

    def _poll(self) -> None:
        """Reads again at each interval once the server serves."""
        if interval_s := self.config.repository.poll_interval_s:
            self.loop.call_at(self.loop.now_s() + interval_s, self._poll)
        if self.engines.is_serving and not self._looks.is_running:
            self.reload(is_asked=False)
