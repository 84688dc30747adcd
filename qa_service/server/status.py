"""The answers to queries: reports read from the server's parts, or what a command has done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from qa_service import __version__
from qa_service.net.event_loop import EventLoop
from qa_service.server.front.open_connections import OpenConnections
from qa_service.server.models.catalog import Catalog
from qa_service.server.models.model import Model
from qa_service.server.models.plan import VersionSpec
from qa_service.server.models.version import Version, VersionState
from qa_service.server.services.cache import CacheStore
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.sidecars import GpuMeter
from qa_service.server.telemetry.exposition import (
    families,
    model_statistics,
    process_families,
    time_families,
)
from qa_service.server.telemetry.health import (
    READY_TIMEOUT_S,
    SERVING,
    STARTING,
    Health,
    why_not_ready,
)
from qa_service.server.telemetry.metrics import Metrics
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.sidecars.gpu_meter import gpu_families
from qa_service.wire.http.model_reports import CASCADE, ModelReport, State
from qa_service.wire.http.prometheus import write_text
from qa_service.wire.messages import Query, QueryType


@dataclass(kw_only=True, eq=False)
class Status:
    """Answers queries; an instance busy for `READY_TIMEOUT_S` does not count as answering."""

    loop: EventLoop
    catalog: Catalog
    connections: OpenConnections
    metrics: Metrics
    store: CacheStore
    counts: ServiceCounts
    phase: Callable[[], str]
    collections: CollectionSet
    gpu_meter: GpuMeter
    reload_fault: Callable[[], str]
    max_queue_delay_us: int

    def __post_init__(self) -> None:
        self._started_s = self.loop.now_s()
        self._answers: dict[QueryType, Callable[[Query, str], object]] = {
            "health": lambda _, client: self._health(client),
            "stats": lambda _, client: self._stats(client),
            "metrics": lambda _, client: self._metrics_text(client),
            "models": lambda *_: self._models(),
            "load": lambda query, _: self.catalog.load(query.model),
            "unload": lambda query, _: self.catalog.unload(query.model),
            "document": lambda *_: None,
        }

    def answer(self, query: Query, client: str) -> object:
        """Answers and counts a query of a client, which sees the collections that it may ask."""
        self.metrics.queries_total[query.type] += 1
        return self._answers[query.type](query, client)

    def _health(self, client: str) -> Health:
        """The server's health; it is ready if the default model should answer."""
        phase, default = self.phase(), self.catalog.default
        its = default.versions_in(VersionState.READY) if default else []
        reason = why_not_ready(phase, *self._instances(its))
        if reason and default and default.failures and not its:
            reason += "; " + next(iter(default.failures.values())).message
        alive, answering = self._instances(self.catalog.ready)
        reports = self._versions(phase)
        return Health(
            live=True,
            ready=reason is None,
            reason=reason,
            phase=phase,
            sessions_alive=alive,
            sessions_answering=answering,
            sessions_wanted=self._wanted(),
            queue_length=sum(one.queue_length for one in reports),
            model=its[-1].pool.model.name if its else "",
            uptime_s=self._uptime_s(),
            version=__version__,
            models={f"{one.name}/{one.version}": one.state for one in reports},
            failures={f"{one.name}/{one.version}": one.reason
                      for one in reports if one.failed_loads},
            collections=self.collections.states(client),
            collection_faults=self.collections.faults(client),
            reload_fault=self.reload_fault() or None,
        )  # fmt: skip

    def _stats(self, client: str) -> dict[str, object]:
        states, faults = self.collections.states(client), self.collections.faults(client)
        return {
            **self.metrics.report(self._gauges()),
            **self.counts.report(states, faults),
            "loop": self.loop.times,
            "sessions": self._sessions(),
            "gpus": self.gpu_meter.readings,
        }

    def _sessions(self) -> list[dict[str, object]]:
        return [
            {"model": version.spec.model, "version": version.spec.number, **report}
            for version in self.catalog.ready
            for report in version.pool.reports()
        ]

    def _metrics_text(self, client: str) -> bytes:
        counted = families(self.metrics, self._gauges(), self._versions())
        services = self.counts.families(self.collections.states(client))
        gpus = gpu_families(self.gpu_meter.readings)
        times = time_families(self.loop.times, self._sessions())
        return write_text([*counted, *services, *times, *gpus, *process_families()])

    def _models(self) -> list[ModelReport]:
        versions, routes = self._versions(self.phase()), []
        for name, route in self.catalog.routes.items():
            # Its state is that of its first model, whose errors are the route's.
            its = [one for one in versions if one.name == route.cascade[0]]
            best = next((one for one in its if one.is_ready), its[0] if its else None)
            report = ModelReport(
                name=name,
                version="",
                engine_type=CASCADE,
                state=best.state if best else "UNAVAILABLE",
                is_ready=best is not None and best.is_ready,
                reason=best.reason if best else f"{route.cascade[0]} is not loaded",
                instances=0,
                max_queue_delay_us=self.max_queue_delay_us,
                cascade=route.cascade,
            )
            routes.append(report)
        return [*routes, *versions]

    def _versions(self, phase: str = SERVING) -> list[ModelReport]:
        """Every version that is there or planned, by name, the largest share first."""
        reports = [
            self._report(model, spec, version, phase)
            for model in self.catalog.by_name.values()
            for spec, version in _versions(model)
        ]
        return sorted(reports, key=lambda one: (one.name, -one.share, int(one.version)))

    def _report(
        self, model: Model, spec: VersionSpec, version: Version | None, phase: str
    ) -> ModelReport:
        planned = model.plan.versions.get(spec.number)
        failure = model.failures.get(planned) if planned else None
        is_served = version is not None and version.state is VersionState.READY
        alive, answering = self._instances([version] if version and is_served else [])
        # What is loaded serves while another model is not yet.
        phase = SERVING if phase == STARTING else phase
        reason = why_not_ready(phase, alive, answering)
        state = _STATES.get(version.state, "UNAVAILABLE") if version else "UNAVAILABLE"
        if not spec.is_loadable:
            reason, state = "its engines are being measured", "LOADING"
        elif reason is None:
            state = "READY"
        figures: dict[str, Any] = {}
        if version:
            figures = {
                "is_on_gpu": any(device != "cpu" for device in version.pool.devices),
                "statistics": model_statistics(version.metrics),
                "share": model.share(version),
                "alive": version.pool.alive,
                "queue_length": version.dispatcher.queue_length,
                "memory_bytes": version.pool.memory_bytes,
            }
        return ModelReport(
            name=spec.model,
            version=str(spec.number),
            engine_type=spec.instances.inference_engine_type,
            precision=spec.instances.precision,
            state=state,
            is_ready=reason is None,
            reason=failure.message if failure else reason or "",
            instances=spec.instances.num_instances,
            max_queue_delay_us=self.max_queue_delay_us,
            labels=sorted(label for label, number in model.labels.items() if number == spec.number),
            failed_loads=failure.count if failure else 0,
            **figures,
        )

    def _gauges(self) -> dict[str, float]:
        in_flight = [len(connection.calls.in_flight) for connection in self.connections]
        return {
            "uptime_s": self._uptime_s(),
            "connections_open": len(in_flight),
            "requests_in_flight": sum(in_flight),
            "queue_length": sum(
                version.dispatcher.queue_length for version in self.catalog.versions
            ),
            "sessions_alive": self._instances(self.catalog.ready)[0],
            "sessions_wanted": self._wanted(),
            "cache_bytes": self.store.num_bytes,
            "cache_entries": len(self.store),
            "reload_failed": int(bool(self.reload_fault())),
        }

    def _instances(self, versions: Iterable[Version]) -> tuple[int, int]:
        pools = [version.pool for version in versions]
        since_s = self.loop.now_s() - READY_TIMEOUT_S
        return sum(pool.alive for pool in pools), sum(pool.answering(since_s) for pool in pools)

    def _wanted(self) -> int:
        plans = (model.plan for model in self.catalog.by_name.values())
        return sum(s.instances.num_instances for plan in plans for s in plan.versions.values())

    def _uptime_s(self) -> float:
        return round(self.loop.now_s() - self._started_s, 3)


def _versions(model: Model) -> Iterable[tuple[VersionSpec, Version | None]]:
    """Each version that is planned or there, with the one nearest to ready of its number."""
    best: dict[int, Version] = {}
    for version in model.versions:
        other = best.get(version.spec.number)
        if other is None or _ORDER.index(version.state) < _ORDER.index(other.state):
            best[version.spec.number] = version
    wanted = {number: (spec, best.get(number)) for number, spec in model.plan.versions.items()}
    there = {number: (version.spec, version) for number, version in best.items()}
    return {**there, **wanted}.values()


_ORDER = (VersionState.READY, VersionState.LOADING, VersionState.DRAINING, VersionState.ENDING,
          VersionState.GONE)  # fmt: skip


_STATES: dict[VersionState, State] = {
    VersionState.LOADING: "LOADING",
    VersionState.DRAINING: "UNLOADING",
    VersionState.ENDING: "UNLOADING",
}
