"""From the configuration to what is served: at the start, at SIGHUP, and when a file has changed.

file, flags, folders ──read──▶ a plan ──apply──▶ models and routes
├─a fault─▶ said where; nothing changes
└─an unmeasured engine─▶ measured in a separate process, then applied

While the server serves, a thread reads, since a mount may hang. A look that hangs is waited for,
but a SIGHUP begins another.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from msgspec import structs

from qa_service.errors import SetupError, error_context
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.options import InstanceOptions
from qa_service.net.event_loop import EventLoop
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS, Readings
from qa_service.server.config import ConfigSource, ServerConfig, changed_options
from qa_service.server.models.catalog import Catalog
from qa_service.server.models.engine_choices import EngineChoices
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.options import ModelOptions
from qa_service.server.models.plan import Plan, make_plan
from qa_service.server.models.preparing import served_folder
from qa_service.server.services.options import check_name
from qa_service.server.services.retrieval import Retrieval
from qa_service.server.services.router import Router

logger = logging.getLogger(__name__)


def encoder_of(config: ServerConfig) -> Path:
    """The folder of the encoder that embeds questions to collections."""
    models = [model.path for model in config.models.values()]
    return config.search.encoder_folder(models or [served_folder(config.repository.model)])


class Deployment:
    """Keeps what is served as the configuration has it.

    Args:
        config: As the server was started.
        source: Where it can be read again.

    Attributes:
        fault: Why the configuration or a folder could not be read again; empty if it could.
    """

    def __init__(
        self,
        config: ServerConfig,
        source: ConfigSource,
        loop: EventLoop,
        catalog: Catalog,
        *,
        router: Router,
        engines: EngineChoices,
        retrieval: Retrieval,
    ) -> None:
        self._config = config
        self._source = source
        self._loop = loop
        self._catalog = catalog
        self._router = router
        self._engines = engines
        self._retrieval = retrieval
        self._is_serving = False
        self._generation = 0
        self._only_name = ""
        self.fault = ""
        self._waiting: list[str] = []
        self._looks: Readings[tuple[ServerConfig, Plan]] = Readings(
            loop,
            self._note_fault,
            too_many=f"{MAX_READINGS} looks at the configuration and the models hang",
            hanging="the configuration and the folders of models could not be read for "
            f"{HANGS_AFTER_S:g} s: one of them hangs",
        )

    def start(self) -> None:
        """Loads everything at once, except versions whose engines must be measured first.

        Raises:
            SetupError: The configuration cannot be served.
        """
        plan = self._plan(self._config, self._generation)
        self._use_collections(self._config)
        self._apply(plan)
        self._poll_later()

    def follow(self) -> None:
        """Loads what has been measured; measures what is left when nothing is being loaded."""
        plan = self._catalog.plan.with_engines(self._choose)
        if plan != self._catalog.plan:
            self._apply(plan)
        if not self._catalog.is_loading:
            self._engines.measure_next()

    def end_start(self) -> None:
        """From now on nothing is measured."""
        self._is_serving = True

    def reload(self) -> None:
        """Reads the configuration again and applies what has changed.

        A model that no file names is loaded again. What could not be loaded is tried again at once.
        """
        self._generation += 1
        self._start_look(tries_again=True)

    # Looks.

    def _start_look(self, *, tries_again: bool = False) -> None:
        """Looks again; what could not be loaded is tried again afterwards, if it `tries_again`."""
        read = partial(self._read, self._generation)
        self._looks.start(read, partial(self._on_read, tries_again=tries_again))

    def _read(self, generation: int) -> tuple[ServerConfig, Plan]:
        """In a thread. Nothing else chooses engines while the server serves."""
        config = self._source.read()
        return config, self._plan(config, generation)

    def _on_read(self, found: tuple[ServerConfig, Plan] | Exception, *, tries_again: bool) -> None:
        try:
            if isinstance(found, Exception):
                raise found
            config, plan = found
            self._use_collections(config)
            if plan != self._catalog.plan:
                self._apply(plan)
        except (SetupError, OSError) as error:
            self._note_fault(str(error))
            return
        self.fault = ""
        self._log_restart_needed(config)
        if tries_again:
            for model in self._catalog.by_name.values():
                model.try_again()

    def _note_fault(self, fault: str) -> None:
        if fault != self.fault:
            logger.error("reload failed, configuration unchanged: %s", fault)
        self.fault = fault

    def _use_collections(self, config: ServerConfig) -> None:
        self._retrieval.use(config.collections, config.repository.collections_dir)

    def _apply(self, plan: Plan) -> None:
        self._catalog.apply(plan)
        self._router.use(plan.routes)

    def _plan(self, config: ServerConfig, generation: int) -> Plan:
        if not config.models:
            return self._plan_only_model(config, generation)
        with error_context(str(self._source.file)):
            for name in config.models:
                with error_context(f"[models.{name}]"):
                    check_name(name)
            return make_plan(config.models, config.routes, self._choose)

    def _plan_only_model(self, config: ServerConfig, generation: int) -> Plan:
        """The plan where the one model is given by flags."""
        if config.routes:
            raise SetupError(f"{self._source.file}: [routes] needs [models.NAME]")
        path, instances = served_folder(config.repository.model), config.instances
        manifest = load_manifest(path)
        if not instances.num_instances:
            raise SetupError("num_inference_sessions and ray_instances are both 0")
        self._only_name = self._only_name or manifest.name
        model = ModelOptions(path=path, **structs.asdict(instances))
        try:
            return make_plan({self._only_name: model}, {}, self._choose, generation)
        except SetupError as error:
            prefix = f"[models.{self._only_name}]: "  # there is no such table
            raise SetupError(str(error).removeprefix(prefix)) from None

    def _choose(self, model: str, found: FoundVersion, options: InstanceOptions) -> InstanceOptions:
        return self._engines.choose(
            model, found.path, found.fingerprint, options, may_measure=not self._is_serving
        )

    def _log_restart_needed(self, config: ServerConfig) -> None:
        ours = {
            "[repository] model",
            *(f"[instances] {f}" for f in config.instances.__struct_fields__),
        }
        waiting = [name for name in changed_options(self._config, config) if name not in ours]
        if waiting and waiting != self._waiting:
            logger.warning("a restart is needed to apply: %s", ", ".join(waiting))
        self._waiting = waiting

    # Polling.

    def _poll_later(self) -> None:
        if interval_s := self._config.repository.poll_interval_s:
            self._loop.call_at(self._loop.now_s() + interval_s, self._poll)

    def _poll(self) -> None:
        self._poll_later()
        if self._is_serving and not self._looks.is_running:
            self._start_look()
