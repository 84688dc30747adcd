"""All that the simulation knows of the server's inside: how it is put together, and its tables.

The server is `QaServer` as it is; what it takes of the machine around it is replaced: the selector,
the clock, signals, the listening socket, the folders of models, the engines to choose from, and the
processes of the workers. A change of the server's internals is felt in this file alone.
"""

import itertools
import math
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from msgspec import structs

from qa_service.errors import SetupError
from qa_service.files import Stamp
from qa_service.net.event_loop import MAX_WAIT_S, EventLoop
from qa_service.server.children import child
from qa_service.server.children.child import Launch
from qa_service.server.config import ServerConfig
from qa_service.server.front.connection import Connection
from qa_service.server.instances.base import InstanceProgram
from qa_service.server.life_cycle import QaServer
from qa_service.server.models.model_options import ModelOptions
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import make_plan
from qa_service.server.models.version import Version, VersionState
from qa_service.server.services.cache import ENTRY_BYTES
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.sidecars import GATEWAY_PROGRAM
from qa_service.server.telemetry.metrics import Metrics
from tests.simulation.gateway import Gateway
from tests.simulation.network import Network, SocketModule
from tests.simulation.searching import Library
from tests.simulation.workers import Machine, Process
from tests.simulation.world import OrderedSet, World

NO_COST = 1e-6
READ_S = 0.01
MAX_REPLY_BYTES = 4096
"""The replies to all that is in flight may come on top of a full output buffer."""
_FILE = (1, 1)
"""The file of the Unix socket, which nobody removes."""


class SimulatedLoop(EventLoop):
    """The real loop, which waits in the simulated world and hears of signals there."""

    def __init__(self, world: World) -> None:
        with patch.object(selectors, "DefaultSelector", lambda: world.selector):
            super().__init__()
        self.now_s = world.now_s
        self.max_wait_s = MAX_WAIT_S if world.may_pause else math.inf
        self._world = world

    @property
    def times(self) -> dict[str, float]:
        """Not the processor's: a reply's length must not depend on how many digits that has."""
        return {"cpu": 0.0, "waiting": round(self._waited_s, 6)}

    def on_signal(self, signum, callback):
        self._world.signals[signum] = callback

    def run_in_thread(self, work, on_end):
        """Files are read at once, and are known a moment later."""
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        self._world.after(READ_S, lambda: self._world.call(lambda: on_end(outcome)))


class Source:
    """Where the server reads its configuration again."""

    file = Path("simulated.toml")

    def __init__(self, config: ServerConfig) -> None:
        self.config = config

    def lists_models(self) -> bool:
        """Its files say which models are meant."""
        return True

    def read(self) -> ServerConfig:
        return self.config

    def stamp(self) -> Stamp:
        return None


class _Engines:
    """What chooses engines: the options leave nothing to choose."""

    def __init__(self, *_, **__):
        self.is_serving = False

    def choose(self, model, found, options):
        return options

    def reject(self, *_):
        pass

    def measure_next(self):
        pass

    def close(self):
        pass


@contextmanager
def simulated(
    world: World,
    network: Network,
    machine: Machine,
    library: Library,
    gateway: Gateway,
    disk: dict[str, dict[int, str]],
) -> Iterator[None]:
    """The machine around the server is the simulated one."""

    def make_factory(_, setup):
        return lambda _: InstanceProgram(setup, cast(Launch, machine.launch))

    def start_program(module, *arguments, **_):
        if module == GATEWAY_PROGRAM:
            return gateway.start_program(*arguments)
        return library.start_program()

    replaced = {
        "qa_service.server.life_cycle.EventLoop": lambda: SimulatedLoop(world),
        "qa_service.server.life_cycle.EngineChoices": _Engines,
        "qa_service.server.models.catalog.make_factory": make_factory,
        "qa_service.server.sidecars.start_program": start_program,
        "qa_service.server.services.searches.start_program": start_program,
        "qa_service.net.listener.socket": SocketModule(network.make_listening_socket),
        "qa_service.net.listener._bound": lambda _: (network.make_local_socket(), _FILE),
        "qa_service.net.listener._file_at": lambda _: _FILE,
        "qa_service.server.models.plan.find_versions": partial(_find_versions, disk),
        "qa_service.server.deployment.source_to_prepare": lambda *_, **__: None,
        "qa_service.server.deployment.load_manifest": lambda path: SimpleNamespace(name=path.name),
        "qa_service.sidecars.grpc_gateway.grpc_server.try_port": lambda *_: None,
        "qa_service.sidecars.grpc_gateway.peers.SilentPeers.look": lambda _: None,
        **gateway.parts(),
    }
    with _replaced({_place(name): value for name, value in replaced.items()}):
        yield


@cache
def _place(name: str) -> tuple[Any, str]:
    """Where a name stands: a module or a class, and its attribute."""
    owner, _, attribute = name.rpartition(".")
    return resolve_name(owner), attribute


@contextmanager
def _replaced(values: dict[tuple[Any, str], object]) -> Iterator[None]:
    """As `unittest.mock.patch` of each, which takes longer than some runs."""
    before = {place: vars(place[0])[place[1]] for place in values}
    try:
        for (owner, name), value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


class SimulatedServer(QaServer):
    """The real server, with sets that are in order."""

    def __init__(self, config, source):
        super().__init__(config, lambda _: None, lambda _: None, source)

    def _connect(self, stream, name, *, is_local=False):
        super()._connect(stream, name, is_local=is_local)
        [*_, connection] = self._connections
        connection.calls.in_flight = OrderedSet()  # type: ignore[assignment]
        close_gently = stream.close_gently

        def note_and_close():
            stream._sock.stop_counting()
            close_gently()

        stream.close_gently = note_and_close


def make_server(config: ServerConfig, source: Source) -> QaServer:
    return SimulatedServer(config, source)


def _find_versions(disk, path):
    found = disk.get(path.name)
    if not found:
        raise SetupError(f"{path} cannot be read")
    return {n: FoundVersion(n, path / str(n), found[n]) for n in sorted(found)}


def gateway_has_started(server: QaServer) -> bool:
    """Whether the server knows that its gateway listens, or has listened."""
    return server._gateway.has_started


# What is looked at after every step.


def has_queue(server: QaServer) -> bool:
    """Whether a request waits for an instance."""
    for model in server.catalog.by_name.values():
        for version in model.versions:
            if version.dispatcher.queue_length:
                return True
    return False


def over_bounds(server: QaServer) -> Iterator[str]:
    limits = server.config.connections
    max_in_flight = limits.max_in_flight_per_connection
    max_output_bytes = limits.max_output_buffer_bytes + (max_in_flight + 16) * MAX_REPLY_BYTES
    for connection in server._connections._open:
        if len(connection.calls.in_flight) > max_in_flight:
            yield f"{connection.name} has {len(connection.calls.in_flight)} requests in flight"
        if connection._stream.output_bytes > max_output_bytes:
            yield f"{connection.name} holds {connection._stream.output_bytes} bytes of output"
    max_queue_size = server.config.queue.max_queue_size
    for model in server.catalog.by_name.values():
        for version in model.versions:
            scheduler = version.dispatcher._scheduler
            if len(scheduler) > max_queue_size:
                new = [t for t in _queued(scheduler) if not (t.core or t.attempts or t.moves)]
                if len(new) > max_queue_size:
                    yield f"{len(new)} requests wait for {version.spec}"
    if server._store.num_bytes > max(0, server._store.max_bytes):
        yield f"the cache takes {server._store.num_bytes} bytes"


def _queued(scheduler):
    """What waits for its first run."""
    return [ticket for flow in scheduler.flows._flows.values() for *_, ticket in flow.line]


def strays(server: QaServer) -> Iterator[tuple[str, str]]:
    """What is held though it has ended, by the check that finds it."""
    for searches in server._collections.processes():
        for search in itertools.chain(*searches._waiting.values()):
            if (call := search.call) and call.is_settled:
                yield "settled", f"{call.scope.name} is settled, and waits for a search"
    for version in server.catalog.versions:
        for ticket in _queued(version.dispatcher._scheduler):
            if ticket.call.is_settled:
                yield "settled", f"{ticket.call.scope.name} is settled, and waits for an instance"
    shards = server._store._shards
    real = sum(ENTRY_BYTES + len(v) for shard in shards for v in shard.entries.values())
    if real != server._store.num_bytes:
        yield "cache", f"the cache counts {server._store.num_bytes} bytes and has {real}"


# What is looked at when all is answered.


def held(server: QaServer) -> Iterator[str]:
    """What is held though nothing is in flight."""
    for connection in server._connections:
        if connection.calls.in_flight:
            yield f"{connection.name} has {len(connection.calls.in_flight)} requests in flight"
    for version in server.catalog.versions:
        yield from (f"{version.spec}: {what}" for what in _held_by_version(version))
    for searches in server._collections.processes():
        if searches.num_waiting or searches._running or searches._first:
            yield f"{searches.num_waiting} searches wait, {len(searches._running)} are made"
    for name, state in server._collections.states().items():
        if state != "READY":
            yield f"the collection {name} is {state}"


def _held_by_version(version):
    scheduler = version.dispatcher._scheduler
    if len(scheduler) or _queued(scheduler):
        yield f"{len(scheduler)} requests wait"
    if abs(scheduler.flows.cost) > NO_COST:
        yield f"work is reserved: {scheduler.flows.cost}"
    if version._in_flight:
        yield f"{len(version._in_flight)} requests in flight"
    for worker in version.pool.workers:
        if worker.in_flight:
            yield f"instance {worker.number} holds {len(worker.in_flight)} batches"
    service = version.service
    while service is not version.dispatcher:
        for name in ("_flights", "_num_members"):
            if getattr(service, name, None):
                yield f"{type(service).__name__}.{name} holds {getattr(service, name)}"
        service = getattr(service, "service", None) or service.dispatcher


def flows_held(server: QaServer) -> Iterator[str]:
    """The flows that are still active, where the last batch has emptied a queue."""
    for version in server.catalog.versions:
        flows = version.dispatcher._scheduler.flows
        if len(flows) and version.state is VersionState.READY:
            yield f"{version.spec}: {len(flows)} flows are known"


def serving(server: QaServer) -> set[tuple[str, int, str]]:
    """Model, number and fingerprint of each version that takes requests."""
    return {(s.spec.model, s.spec.number, s.spec.found.fingerprint) for s in server.catalog.ready}


def wanted(server: QaServer) -> set[tuple[str, int, str]]:
    """The same of what the server's plan has."""
    return _versions_of(server.catalog.plan)


def has_started(server: QaServer) -> bool:
    """Whether all that is wanted serves, and the gateway listens or there is none."""
    return wanted(server) <= serving(server) and gateway_has_started(server)


def planned(config: ServerConfig) -> set[tuple[str, int, str]] | None:
    """What a configuration asks for; None if it cannot be served. Within `simulated`."""
    models = config.models or {"a": _only_model(config)}
    try:
        plan = make_plan(models, config.routes, lambda _, __, options: options)
    except SetupError:
        return None
    return _versions_of(plan)


def _only_model(config):
    return ModelOptions(path=config.repository.model, **structs.asdict(config.instances))


def _versions_of(plan):
    return {
        (spec.model, spec.number, spec.found.fingerprint)
        for model in plan.models.values()
        for spec in model.versions.values()
    }


# Faults that are planted, to see that they are found.


def _mix_up(dispatcher, batch, results, on_results=Dispatcher.on_results):
    """Gives each request of a batch another one's answer."""
    outcomes = [*results.outcomes[1:], *results.outcomes[:1]]
    on_results(dispatcher, batch, structs.replace(results, outcomes=outcomes))


def _forget(dispatcher, batch, *, were_running):
    """Forgets what an instance died with."""


def _queue_for_ever(dispatcher, ticket):
    """Leaves a call that has ended in the queue."""
    dispatcher._scheduler.add(ticket)


def _count_pauses(_, since_s, timeout_s):
    """Counts a pause as a child's time."""
    return since_s + timeout_s


def _reload_when_ready(server, reload=QaServer.reload):
    """Loses a reload that comes during the start."""
    if server._phase_name == "serving":
        reload(server)


PLANTED = {
    "plan": (QaServer, "reload", _reload_when_ready),
    "answer": (Dispatcher, "on_results", _mix_up),
    "unanswered": (Dispatcher, "on_lost", _forget),
    "bound": (Connection, "_has_room", lambda _: True),
    "orphans": (Process, "kill", lambda _: None),
    "held": (Version, "_drop", lambda *_: None),
    "doubt": (Metrics, "num_wrong", 0),
    "settled": (Dispatcher, "_add", _queue_for_ever),
    "unavailable": (child, "overdue_s", _count_pauses),
}
"""By the check that is to find it: whose method it replaces, and with what."""
