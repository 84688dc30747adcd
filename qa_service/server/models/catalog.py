"""All models that are served: the catalog brings them to a plan and bounds their memory.

A plan replaces another without a gap, as a version does (`Model`):

    a route is new or another    ─▶ it applies when its models are ready, or at once if nothing else
                                    answers its name
    a model is not planned       ─▶ it serves until all planned versions do, and then drains
    another is the only model    ─▶ requests without a name go there when it is ready
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qa_service.errors import SetupError, UnknownModelError, list_choices
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions, plural
from qa_service.net.event_loop import EventLoop
from qa_service.server.instances.base import ProgramFactory, make_factory
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.instances.ray_pool import RayPool
from qa_service.server.models.model import Model
from qa_service.server.models.plan import ModelPlan, Plan, VersionSpec
from qa_service.server.models.version import Version, VersionState
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from qa_service.server.services.chain import Services
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.service_options import DEFAULT_ROUTE, RouteOptions
from qa_service.server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PROCESS_BYTES = 64 << 20
"""An instance's memory besides its model's files, estimated until an instance has measured it."""


@dataclass(eq=False)
class Catalog:
    """The models that are served.

    Attributes:
        by_name: The models, those that are ending included.
    """

    loop: EventLoop
    queue: QueueOptions
    metrics: Metrics
    services: Services
    logs: LogOptions
    max_memory_bytes: int
    drain_timeout_s: float

    def __post_init__(self) -> None:
        self.plan = Plan({}, {})
        self.by_name: dict[str, Model] = {}
        self.routes: Mapping[str, RouteOptions] = {}
        self._only = ""
        """The model of requests that name none; empty if several are served."""
        self._unloaded: set[str] = set()

    def apply(self, plan: Plan) -> None:
        """Starts to serve another plan, or raises `SetupError` if a named device is missing."""
        leaving = {n: m.plan for n, m in self.by_name.items() if m.ready_specs}
        plans = {**leaving, **plan.models}
        for spec in (spec for its in plans.values() for spec in its.versions.values()):
            self._make_factory(spec)  # says what cannot be had, before anything changes
        self.plan = plan
        self._unloaded.clear()
        for name in plan.models:
            if name not in self.by_name:
                self.by_name[name] = Model(name, self.loop, self._make_version)
        for name, model in self.by_name.items():
            model.apply(plans.get(name) or ModelPlan(name))
        self._move()

    def reconcile(self, *, at_once: bool) -> None:
        """Takes each model's next steps to its plan (`Model.reconcile`); drops those that ended."""
        before = {version.spec.key for version in self.versions}
        for model in self.by_name.values():
            model.reconcile(at_once=at_once)
        self._move()
        for key in before - {version.spec.key for version in self.versions}:
            self.metrics.end_version(*key)
        self.by_name = {
            name: model
            for name, model in self.by_name.items()
            if name in self.plan.models or model.plan.versions or model.versions
        }

    def _move(self) -> None:
        """Moves routes, and requests without a model's name, to what is ready; ends the rest."""
        is_done = all(  # but for what was unloaded by request
            spec in self.by_name[name].ready_specs
            for name, its in self.plan.models.items()
            if name not in self._unloaded
            for spec in its.versions.values()
        )
        working = {n: r for n, r in self.routes.items() if all(map(self._serves, r.cascade))}
        moved = {
            name: route
            for name, route in self.plan.routes.items()
            if is_done
            or all(map(self._serves, route.cascade))
            or not (name in working or self._serves(self._only if name == DEFAULT_ROUTE else name))
        }
        self.routes = moved if is_done else {**working, **moved}
        if is_done or not self._serves(self._only):
            self._only = next(iter(self.plan.models)) if len(self.plan.models) == 1 else ""
        for name, model in self.by_name.items():
            if is_done and name not in self.plan.models and model.plan.versions:
                model.apply(ModelPlan(name))

    def _serves(self, name: str) -> bool:
        return name in self.by_name and bool(self.by_name[name].ready_specs)

    def load(self, name: str) -> dict[str, str]:
        """Loads an unloaded model again, and tries failed versions at once; returns the reply."""
        model = self._planned(name)
        self._unloaded.discard(name)
        model.apply(self.plan.models[name])
        model.try_again()
        return {"model": name}

    def unload(self, name: str) -> dict[str, str]:
        """Starts to drain a model, which `load` or another plan brings back; returns the reply."""
        model = self._planned(name)
        self._unloaded.add(name)
        model.apply(ModelPlan(name))
        return {"model": name}

    def find(self, name: str | None) -> Model:
        """The model of a name, or the only one without a name; raises `UnknownModelError`."""
        name = name or self._only or None
        if name is None or name not in self.by_name or not self._can_be_asked(name):
            raise self._unknown(name)
        return self.by_name[name]

    @property
    def default(self) -> Model | None:
        """The first model that answers a request without a model's name."""
        route = self.routes.get(DEFAULT_ROUTE)
        names = route.cascade if route else [self._only] if self._only else list(self.plan.models)
        return self.by_name[names[0]] if names else None

    @property
    def versions(self) -> list[Version]:
        """Every version of every model, those that are ending included."""
        return [version for model in self.by_name.values() for version in model.versions]

    @property
    def ready(self) -> Iterator[Version]:
        return (version for version in self.versions if version.state is VersionState.READY)

    @property
    def loss(self) -> str:
        """Why the last version stopped serving, if the last `reconcile` found that; else empty."""
        return "" if any(self.ready) else "; ".join(m.loss for m in self.by_name.values() if m.loss)

    @property
    def memory_bytes(self) -> int:
        """The memory of all instances, measured where possible, else estimated."""
        return sum(
            max(one.pool.memory_bytes, one.pool.size * self._instance_bytes(one.spec))
            for one in self.versions
            if one.state is not VersionState.GONE
        )

    def dispatch(self) -> None:
        for version in self.versions:
            version.dispatcher.dispatch()

    def startup_failure(self) -> str | None:
        """Why the server cannot start: no version of some model can be loaded. None if it can."""
        for model in self.by_name.values():
            wanted = model.plan.versions.values()
            has_failed = wanted and all(spec in model.failures for spec in wanted)
            if has_failed and not model.versions_in(VersionState.LOADING, VersionState.READY):
                return next(iter(model.failures.values())).message
        return None

    @property
    def is_loading(self) -> bool:
        return any(version.state is VersionState.LOADING for version in self.versions)

    @property
    def has_started(self) -> bool:
        """Whether every version is ready or could not be loaded."""
        return all(
            spec in model.failures or spec in model.ready_specs
            for model in self.by_name.values()
            for spec in model.plan.versions.values()
        )

    def close(self) -> None:
        for name, model in self.by_name.items():
            model.plan = ModelPlan(name)
        for version in self.versions:
            version.close()

    def kill(self) -> None:
        for version in self.versions:
            version.pool.kill()

    def reap(self) -> bool:
        """Removes processes that have ended; returns whether none is left."""
        ended = [version.pool.reap() for version in self.versions]
        return all(ended)

    def _make_factory(self, spec: VersionSpec) -> ProgramFactory:
        found, model = spec.found, self.by_name.get(spec.model)
        # The folder of the version that serves while this one is loaded.
        former = str(model.ready_specs[-1].found.path) if model and model.ready_specs else ""
        setup = Setup(
            str(found.path),
            spec.instances,
            fingerprint=found.fingerprint,
            former_dir=former,
            hooks_fingerprint=spec.hooks_fingerprint,
        )
        return make_factory(self.logs, setup)

    def _make_version(self, spec: VersionSpec, num_instances: int) -> Version:
        """Makes a version, if its instances fit into memory."""
        needed = num_instances * self._instance_bytes(spec)
        check_memory(spec, num_instances, needed, self.memory_bytes, self.max_memory_bytes)
        metrics = self.metrics.for_version(*spec.key)
        kind = RayPool if spec.instances.ray_range[1] else WorkerPool
        pool = kind(
            self.loop,
            spec.instances,
            self._make_factory(spec),
            metrics,
            self.drain_timeout_s,
            str(spec),
        )
        dispatcher = pool.batches = Dispatcher(self.loop, Scheduler(self.queue), pool, metrics)
        model = self.by_name[spec.model]
        service = self.services.around_version(
            dispatcher, model, spec.number, spec.instances, metrics
        )
        return Version(spec, self.loop, pool, dispatcher, service, metrics=metrics)

    def _planned(self, name: str | None) -> Model:
        if name is None or name not in self.plan.models:
            raise self._unknown(name)
        return self.by_name[name]

    def _unknown(self, name: str | None) -> UnknownModelError:
        what = "the request names no model" if name is None else f"there is no model {name[:64]}"
        names = [name for name in self.by_name if self._can_be_asked(name)]
        there = list_choices([*names, *self.routes]) if names else "no model is loaded"
        return UnknownModelError(f"{what}; {there}")

    def _can_be_asked(self, name: str) -> bool:
        """Whether a model is planned, or about to be replaced."""
        is_planned = name in self.plan.models or bool(self.by_name[name].plan.versions)
        return is_planned and name not in self._unloaded

    def _instance_bytes(self, spec: VersionSpec) -> int:
        """An instance's memory: as one of this model measured it, else by its files."""
        model = self.by_name[spec.model]
        measured = [
            version.pool.memory_bytes // version.pool.alive
            for version in model.versions
            if version.spec.instances == spec.instances and version.pool.alive
        ]
        return max(measured, default=estimated_bytes(spec))


def estimated_bytes(spec: VersionSpec) -> int:
    its = spec.instances
    return spec.found.loaded_bytes(its.inference_engine_type, its.precision) + PROCESS_BYTES


def check_memory(
    spec: VersionSpec, num_instances: int, needed: int, taken: int, max_memory_bytes: int
) -> None:
    """Raises `SetupError` if a version's instances do not fit; in bytes, a maximum of 0 is none."""
    if max_memory_bytes and taken + needed > max_memory_bytes:
        raise SetupError(
            f"{plural(num_instances, 'instance')} of {spec} would take about {needed} bytes "
            f"in addition to the {taken} of those that run: more than --max_memory_bytes "
            f"{max_memory_bytes}"
        )
