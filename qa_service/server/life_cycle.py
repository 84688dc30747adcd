"""The server's life cycle: phases, signals, the listener, connections, reload and drain.

    STARTING ──models ready──▶ SERVING ──signal──▶ DRAINING ──all answered──▶ STOPPING

It listens from the start: what is loaded by then serves, and health says what is not. A draining
server serves on for `--drain_delay_ms`; then its gate is closed.

A request's way through it is in `docs/ARCHITECTURE.md`; what is here only joins the parts.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from msgspec.structs import replace

from qa_service.errors import (
    ERROR_KINDS,
    InstancesLostError,
    QaError,
    SetupError,
    ShuttingDownError,
    UnavailableError,
)
from qa_service.instance.devices import CPU
from qa_service.net.event_loop import EventLoop
from qa_service.net.listener import is_loopback
from qa_service.net.stream import ByteStream, Stream
from qa_service.net.timers import LazyTimer
from qa_service.server.check.machine import fitting_connections
from qa_service.server.config import ConfigSource, ServerConfig
from qa_service.server.deployment import Deployment, encoder_of
from qa_service.server.front.connection import Connection
from qa_service.server.front.listeners import Listeners, warn_if_exposed
from qa_service.server.front.open_connections import OpenConnections
from qa_service.server.front.protocols import Protocols
from qa_service.server.front.tokens import Authenticator
from qa_service.server.front.transport import Credentials, Transport
from qa_service.server.models.catalog import Catalog
from qa_service.server.models.engine_choices import EngineChoices
from qa_service.server.services.cache import CacheStore
from qa_service.server.services.chain import Services
from qa_service.server.services.collection_set import LOOK_INTERVAL_S, CollectionSet
from qa_service.server.services.router import Router
from qa_service.server.services.searches import search_program
from qa_service.server.services.service import Access, Gate
from qa_service.server.services.tracing import Tracer
from qa_service.server.sidecars import GpuMeter, GrpcProcess, TraceExporter
from qa_service.server.status import Status
from qa_service.server.telemetry.metrics import Metrics
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import QUERY_TYPES

logger = logging.getLogger(__name__)

REAP_INTERVAL_S = 0.02  # a process that ends gives the loop no event
EXIT_TIMEOUT_S = 3.0
"""Longer than connections linger; with a drain of 30 s, within Docker's 40 in docs/OPERATING.md."""


class _Phase(Enum):
    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    STOPPING = auto()


class QaServer:
    """A question-answering server.

    Args:
        on_ready: Called once, when every model is loaded.
        source: Where the configuration can be read again; None if it stays as it is.

    Raises:
        SetupError: The address or the tokens cannot be had.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_listening: Callable[[QaServer], None],
        on_ready: Callable[[QaServer], None],
        source: ConfigSource | None = None,
    ) -> None:
        self.config = config
        self._on_listening = on_listening
        self._on_ready = on_ready
        self._loop = EventLoop()
        self._transport = Transport(self._loop, config.tls, config.connections.handshake_timeout_s)
        self._authenticator = Authenticator(config.auth)
        self._listeners = Listeners(self._loop, config.listen, self._on_client, self._on_local)
        self._gateway = GrpcProcess(self._loop, config.gateway_flags(self._listeners.unix_path))
        self._credentials = Credentials(
            self._loop, self._transport, self._authenticator, self._gateway.reload
        )
        self._metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        self._store = CacheStore(config.cache.cache_bytes)
        self._counts = ServiceCounts()
        services = self._make_services()
        self.catalog = Catalog(
            self._loop, config.queue, self._metrics, services, config.logs,
            max_memory_bytes=config.repository.max_memory_bytes,
            drain_timeout_s=config.server.drain_timeout_ms / 1e3,
        )  # fmt: skip
        router = Router(self.catalog, self._loop, self._counts)
        self._gate = Gate(Access(router, self._collections))
        has_room = not config.repository.max_memory_bytes
        self.engines = EngineChoices(self._loop, config.logs, self._loop.mark, has_room=has_room)
        self._deployment = Deployment(
            config, source or ConfigSource(), self._loop, self.catalog,
            router=router, engines=self.engines, collections=self._collections,
        )  # fmt: skip
        bound, _ = fitting_connections(config.listen.max_connections)
        self._connections = OpenConnections(self._loop, bound, self._gate, self._metrics)
        self._gpu_meter = GpuMeter(self._loop)
        traces = config.traces
        self._exporter = TraceExporter(self._loop, traces.otlp_endpoint, self._metrics, config.logs)
        self._tracer = Tracer(self._loop, traces.trace_sample_rate, self._exporter.take)
        self._status = self._make_status()
        local = is_loopback(config.listen.host)
        self._protocols = Protocols(config.requests.max_frame_bytes, config.http, is_loopback=local)
        self._phase = _Phase.STARTING
        self._reload_is_due = False
        self._drain_timer = LazyTimer(self._loop, lambda: None)
        self._serves_until_s = self._drain_deadline_s = self._exit_deadline_s = math.inf
        self._failure: SetupError | None = None

    def _make_services(self) -> Services:
        queue_size = self.config.queue.max_queue_size
        launch = partial(search_program, self.config.logs, encoder_of(self.config))
        self._collections = CollectionSet(
            self._loop, launch, self._counts, queue_size, look_interval_s=LOOK_INTERVAL_S
        )
        return Services(
            self._loop, self._store, self._counts, queue_size, self._collections,
            num_wrong=lambda: self._metrics.num_wrong,
        )  # fmt: skip

    def _make_status(self) -> Status:
        return Status(
            loop=self._loop,
            catalog=self.catalog,
            connections=self._connections,
            metrics=self._metrics,
            store=self._store,
            counts=self._counts,
            phase=lambda: self._phase_name,
            collections=self._collections,
            gpu_meter=self._gpu_meter,
            reload_fault=lambda: self._deployment.fault or self._credentials.fault,
            max_queue_delay_us=self.config.queue.max_queue_delay_us,
        )

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        return self._listeners.address

    @property
    def devices(self) -> list[str]:
        """Where the instances run, version by version in the order of their numbers."""
        return [device for version in self.catalog.ready for device in version.pool.devices]

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT; returns when all is answered and ended.

        Raises:
            SetupError: A model is not prepared or cannot be loaded, or a device cannot be had.
            InstancesLostError: Instances died and none could be started any more.
        """
        self._loop.on_mark = self._reconcile
        self._loop.after_each = self._after_round
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(signum, self.stop)
        self._loop.on_signal(signal.SIGHUP, self.reload)
        for unused in (signal.SIGUSR1, signal.SIGUSR2):
            self._loop.on_signal(unused, partial(logger.info, "%s does nothing", unused.name))
        try:
            self._listeners.open()
            self._gateway.start()
            self._tracer.server = self.address
            self._exporter.start()
            self._deployment.start()
            warn_if_exposed(
                self.config.listen.host,
                is_encrypted=self._transport.is_encrypted,
                wants_token=self._authenticator.is_required,
            )
            self._on_listening(self)
            self._loop.run()
        finally:
            self._deployment.close()
            self.engines.close()
            self.catalog.close()
            self.catalog.kill()
            self._gateway.child.kill()
            self._collections.kill()
            self._listeners.close()
            self._gpu_meter.child.close()
            self._exporter.child.kill()
            self._loop.close()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Drains: takes no new work, answers what it has, and ends; a second call ends at once."""
        is_asked = any(connection.is_busy for connection in self._connections)
        if self._phase is _Phase.SERVING:
            self._drain_after(self.config.server.drain_delay_ms / 1e3)
        elif self._phase is _Phase.STARTING and is_asked:
            self._drain_after(0.0)
        else:
            self._end_now()

    def _drain_after(self, delay_s: float) -> None:
        waiting = sum(version.dispatcher.queue_length for version in self.catalog.versions)
        logger.info("draining: %d waiting", waiting)
        self._phase = _Phase.DRAINING
        self._serves_until_s = self._loop.now_s() + delay_s
        self._drain_deadline_s = self._serves_until_s + self.config.server.drain_timeout_ms / 1e3
        for connection in self._connections:
            connection.close_when_idle(self._serves_until_s if delay_s else math.inf)
        if delay_s:
            self._loop.call_at(self._serves_until_s, self._refuse_new_work)
        else:
            # Whoever connects now is to try another server at once.
            self._listeners.close()
            self._refuse_new_work()

    def _refuse_new_work(self) -> None:
        self._gate.is_open = False
        self._gateway.child.close()

    def reload(self) -> None:
        if self._phase is _Phase.SERVING:
            self._credentials.reload()
            self._deployment.reload()
        elif self._phase is _Phase.STARTING:
            logger.info("the server is starting: everything is read again when it is ready")
            self._reload_is_due = True
        else:
            logger.info("the server is %s: nothing is read again", self._phase_name)

    def _reconcile(self) -> None:
        """Follows what was marked: an instance, a version, the plan or a chosen engine is new."""
        self.catalog.reconcile(at_once=self._phase is _Phase.STARTING)
        if any(device != CPU for device in self.devices):
            self._gpu_meter.start()
        if self._phase in {_Phase.STARTING, _Phase.SERVING}:
            self._deployment.follow()
        if self._phase is _Phase.STARTING:
            self._follow_start()
        elif self.catalog.loss and self._phase is not _Phase.STOPPING:
            logger.critical("no instance can be started any more: %s", self.catalog.loss)
            self._failure = InstancesLostError(self.catalog.loss)
            self._fail_all(UnavailableError())
            self._end_gently()

    def _follow_start(self) -> None:
        """The server serves when all versions and collections are ready or have failed.

        It ends if a model has failed, or a collection because of how the server is set up.
        """
        failures = (self._deployment.failure, self._gateway.failure, self.catalog.startup_failure())
        parts = (self._deployment, self.catalog, self._gateway, self._collections)
        if message := next(filter(None, (*failures, self._collections.failure)), None):
            self._failure = SetupError(message)
            self._fail_all(UnavailableError())
            self._end_gently() if self._connections else self._end_now()
        elif all(part.has_started for part in parts):
            self._phase = _Phase.SERVING
            self._deployment.end_start()
            self._on_ready(self)
            if self._reload_is_due:
                self.reload()

    def _on_client(self, sock: socket.socket, name: str) -> None:
        self._connect(self._transport.open_stream(sock, name), name)

    def _on_local(self, sock: socket.socket, name: str) -> None:
        self._connect(Stream(self._loop, sock), name, is_local=True)

    def _connect(self, stream: ByteStream, name: str, *, is_local: bool = False) -> None:
        wants_token, limits = self._authenticator.is_required, self.config.connections
        if is_local:  # age does not move a connection of this machine to another server
            limits = replace(limits, max_connection_age_s=0)
        if (service := self._connections.make_room()) is None:
            stream.close()
            return
        connection = Connection(
            stream,
            partial(self._protocols.codec_for, wants_token=wants_token, is_local=is_local),
            service,
            limits,
            clock=self._loop,
            authenticator=self._authenticator,
            report=self._status.answer,
            metrics=self._metrics,
            tracer=self._tracer if self._exporter.is_wanted else None,
            on_end=self._on_connection_end,
            name=name,
        )
        if self._phase is _Phase.DRAINING or service is not self._gate:
            connection.close_when_idle(math.inf)
        self._connections.add(connection)
        self._metrics.connections_accepted_total += 1
        logger.debug("%s has connected", name)

    def _on_connection_end(self, connection: Connection) -> None:
        logger.debug("%s has disconnected", connection.name)
        self._connections.discard(connection)

    @property
    def _phase_name(self) -> str:
        return self._phase.name.lower()

    def _fail_all(self, error: QaError) -> None:
        for connection in self._connections:
            connection.calls.fail_all(error)

    def _after_round(self) -> None:
        """A drain ends when every accepted request is answered, or its time is over."""
        self.catalog.dispatch()
        if self._phase is not _Phase.DRAINING or self._gate.is_open:
            return
        if self._loop.now_s() >= self._drain_deadline_s:
            self._fail_all(ShuttingDownError())
        elif any(connection.is_busy for connection in self._connections):
            self._drain_timer.arm(self._drain_deadline_s)
            return
        self._end_gently()

    def _end_gently(self) -> None:
        self._phase = _Phase.STOPPING
        self._listeners.close()
        self._gateway.child.close()
        self._collections.kill()
        self.catalog.close()
        for connection in self._connections:
            connection.close_gently()
        self._exporter.close()
        self._exit_deadline_s = self._loop.now_s() + EXIT_TIMEOUT_S
        self._finish()

    def _finish(self) -> None:
        """Waits for the last bytes to be read and the workers to end, but not for long."""
        now_s = self._loop.now_s()
        parts = (self.catalog, self._exporter.child, self._gateway.child, self._collections)
        ended = [part.reap() for part in parts]
        has_ended = all(ended) and not self._connections
        if has_ended or now_s >= self._exit_deadline_s:
            self._loop.stop()
        else:
            self._loop.call_at(now_s + REAP_INTERVAL_S, self._finish)

    def _end_now(self) -> None:
        self._phase = _Phase.STOPPING
        self._listeners.close()
        for connection in self._connections:
            connection.close()
        self._loop.stop()
