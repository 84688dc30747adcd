"""What happens in a run, drawn from its seed: a configuration, clients, and a list of events.

An event says all that it needs, so that any of them can be left out and the rest still means
something: that is how a failing run is made small.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import Any

from msgspec import structs

from qa_service.instance.instance_options import InstanceOptions
from qa_service.net.listen_options import ListenOptions
from qa_service.server.config import ServerConfig, ServerOptions
from qa_service.server.front.connection_options import AuthOptions, ConnectionOptions
from qa_service.server.models.model_options import ModelOptions, RepositoryOptions
from qa_service.server.scheduling.scheduler import QueueOptions
from qa_service.server.services.service_options import (
    CacheOptions,
    CollectionOptions,
    RouteOptions,
)
from tests.simulation.clients import ClientPlan
from tests.simulation.gateway import GatewayPlan
from tests.simulation.grpc_drawing import CallDrawer, has_gateway
from tests.simulation.pausing import draw_pause
from tests.simulation.questions import ABSENT, FAULT, PLAIN, POISON, Subject
from tests.simulation.searching import COLLECTION

TOKENS_FILE = Path(__file__).parent / "tokens.txt"
TOKENS = {name: f"{name}-token-0000000" for name in ("one", "another", "eight", "two", "tiny")}
"""By the names that they have in the file; all but the last three have the weight 1."""
ADMIN = TOKENS["one"]
FOLDER = Path("/simulated")
LONG_WORDS = 150
SHARES_EVERY = 25
"""Such a run takes six times as long as another; in 200 seeds, each of `_SHARES` is drawn twice."""


@dataclass(frozen=True)
class Event:
    """An effect of `events.EFFECTS`, with its arguments, so long after the start."""

    at_s: float
    kind: str
    values: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.at_s * 1e3:8.1f} ms  {self.kind}({said})"


@dataclass(frozen=True)
class Scenario:
    """A run, but for what is left to chance while it runs.

    Attributes:
        configs: The first is the server's at its start; events have it read another.
        disk: Fingerprints of the versions that are there at the start, by model.
        machine: What the workers' machine is like: fields of `workers.Machine`.
        capacity: Bytes that may be under way to a client.
        gateway: The gRPC gateway's bounds, if the first configuration has a port for it.
        shares: Of a run that measures shares, what each client's should be at the minimum, and how
            much of that may be missing.
    """

    seed: int
    configs: list[ServerConfig]
    disk: dict[str, dict[int, str]]
    clients: list[ClientPlan]
    events: list[Event]
    machine: dict[str, Any] = field(default_factory=dict)
    capacity: int = 1 << 16
    shares: dict[int, tuple[float, float]] = field(default_factory=dict)
    gateway: GatewayPlan = field(default_factory=GatewayPlan)


def draw(seed: int) -> Scenario:
    """The scenario of a seed; each `SHARES_EVERY`th measures shares."""
    draws = random.Random(seed)
    if seed % SHARES_EVERY == 0:
        return draw_shares(seed, draws)
    scenario = _Drawn(seed, draws).scenario()
    scenario.events.extend(starmap(Event, draw_pause(seed, scenario.events)))
    return scenario


class _Drawn:
    """Draws a scenario in which everything may happen."""

    def __init__(self, seed: int, draws: random.Random) -> None:
        self.seed, self.draws = seed, draws
        self.has_tokens = draws.random() < 0.3
        self.is_table = draws.random() < 0.7
        self.has_route = self.is_table and draws.random() < 0.5
        self.has_collection = draws.random() < 0.4
        self.next_subject = seed * 1000
        self.pool = [self._new_subject() for _ in range(draws.randint(1, 6))]

    def scenario(self) -> Scenario:
        draws = self.draws
        first = self._first_config()
        configs = [first, *(self._variant(first) for _ in range(2))]
        clients = [self._client() for _ in range(draws.randint(1, 6))]
        events = self._events(len(clients))
        same = draws.random() < 0.3
        disk = {"a": {1: "file-1", 2: "file-1" if same else "file-2"}, "b": {1: "file-3"}}
        machine = {
            "saving": draws.choice([0.0, 0.3, 0.8]),
            "measures": draws.random() < 0.6,
            "load_s": draws.choice([0.0, 0.02, 0.2]),
        }
        capacity = draws.choice([64, 1000, 1 << 16])
        scenario = Scenario(self.seed, configs, disk, clients, events, machine, capacity)
        return self._with_gateway(scenario) if has_gateway(self.seed) else scenario

    # Configurations.

    def _first_config(self) -> ServerConfig:
        pick = self.draws.choice
        connections = ConnectionOptions(
            max_in_flight_per_connection=pick([2, 8, 64]),
            max_output_buffer_bytes=pick([200, 4096, 1 << 20]),
            max_priority=pick([0, 9]),
            idle_timeout_ms=pick([0, 600_000, 1500]),
            max_connection_age_s=pick([0, 0, 1]),
            client_timeout_ms=pick([200, 30_000]),
            request_timeout_ms=pick([1000, 5000, 0]),
        )
        queue = QueueOptions(
            max_queue_size=pick([3, 20, 1000]),
            max_queue_delay_us=pick([0, 0, 2000]),
        )
        cache = CacheOptions(cache_bytes=pick([0, 2000, 65536]))
        config = ServerConfig(
            listen=ListenOptions(host="127.0.0.1"),
            auth=AuthOptions(auth_token_file=TOKENS_FILE if self.has_tokens else None),
            connections=connections,
            queue=queue,
            cache=cache,
            repository=RepositoryOptions(model=FOLDER / "a"),
            instances=self._instances(),
            server=ServerOptions(drain_timeout_ms=pick([50, 2000, 30_000])),
            collections={COLLECTION: CollectionOptions(path=FOLDER / COLLECTION)}
            if self.has_collection
            else {},
        )
        return self._with_models(config) if self.is_table else config

    def _variant(self, config: ServerConfig) -> ServerConfig:
        if self.is_table:
            return self._with_models(config)
        return structs.replace(config, instances=self._instances())

    def _instances(self) -> InstanceOptions:
        pick = self.draws.choice
        return InstanceOptions(
            inference_engine_type="onnx",
            precision="fp32",
            devices="cpu",
            num_inference_sessions=pick([1, 2, 3]),
            max_batch_size=pick([1, 4, 64]),
            execution_timeout_ms=pick([300, 2000]),
            self_test_interval_s=pick([1, 1, 600]),
        )

    def _with_models(self, config: ServerConfig) -> ServerConfig:
        pick = self.draws.choice
        models = {"a": self._model("a")}
        if self.has_route or pick([True, False]):
            models["b"] = self._model("b")
        routes = {}
        if self.has_route:
            route = RouteOptions(
                cascade=["b", "a"],
                min_score=pick([0.3, 0.7]),
                ask_next_if_unknown=pick([True, False]),
            )
            routes = {pick(["default", "both"]): route}
        return structs.replace(config, models=models, routes=routes)

    def _model(self, name: str) -> ModelOptions:
        pick, its = self.draws.choice, self._instances()
        options = {field: getattr(its, field) for field in its.__struct_fields__}
        if name == "a":
            options |= pick([
                {},
                {"versions": "all"},
                {"versions": "all", "traffic": {"1": 1, "2": 1}},
                {"versions": [1]},
                {"versions": "all", "shadow": {"1": 100}},
                {"versions": "all", "traffic": {"1": 1}, "shadow": {"2": pick([50, 100])}},
                {"labels": {"stable": 1}},
            ])  # fmt: skip
        return ModelOptions(path=FOLDER / name, transition=pick(["swap", "rolling"]), **options)

    # Clients and what they ask.

    def _client(self) -> ClientPlan:
        draws = self.draws
        token = None
        if self.has_tokens:
            token = draws.choice([*TOKENS.values(), *TOKENS.values(), "wrong"])
        read_bytes = draws.choice([0, 0, 0, 5, 300])
        return ClientPlan(draws.choice(["frames", "http"]), token, read_bytes)

    def _new_subject(self) -> Subject:
        draws = self.draws
        self.next_subject += 1
        words = draws.choice([3, 8, 8, 20, LONG_WORDS, 600 if draws.random() < 0.3 else 8])
        kinds = [PLAIN] * 12 + [ABSENT, ABSENT, POISON, FAULT]
        kind = draws.choice(kinds) if words < LONG_WORDS else draws.choice(kinds[:14])
        return Subject(self.next_subject, words, kind, draws.choice([1, 1, 1, 3]))

    def _subject(self) -> Subject:
        return self.draws.choice(self.pool) if self.draws.random() < 0.3 else self._new_subject()

    def _options(self) -> dict[str, Any]:
        draws = self.draws
        options: dict[str, Any] = {}
        if draws.random() < 0.15:
            options["timeout_ms"] = draws.choice([0.001, 5, 50, 500])
        if draws.random() < 0.2:
            options["priority"] = draws.randint(0, 9)
        if self.is_table and draws.random() < 0.5:
            options["model"] = draws.choice(["a", "a", "b", "both"])
            if options["model"] == "a" and draws.random() < 0.4:
                options["version"] = draws.choice([1, 2, "stable", 7])
        return options

    # Events.

    def _events(self, num_clients: int) -> list[Event]:
        draws = self.draws
        duration_s = draws.uniform(0.3, 3.0)
        starts_late = 0.0 if draws.random() < 0.2 else 0.7
        kinds, weights = zip(*_WEIGHTS.items(), strict=True)
        calm = draws.random() < 0.3
        events = []
        for _ in range(draws.randint(5, 40)):
            [kind] = draws.choices(kinds, weights)
            if kind in _OF_COLLECTIONS and not self.has_collection:
                kind = "ask"
            if calm and kind not in _CALM:
                kind = "ask"
            at_s = round(starts_late + draws.uniform(0, duration_s), 4)
            if kind in _CHOICES:
                values = {name: draws.choice(of) for name, of in _CHOICES[kind].items()}
            else:
                values = getattr(self, f"_{kind}")()
            if kind in _OF_CLIENTS:
                values = {"client": draws.randrange(num_clients), **values}
            events.append(Event(at_s, kind, values))
        if draws.random() < 0.3:
            stop_s = round(starts_late + draws.uniform(0, duration_s), 4)
            events.append(Event(stop_s, "stop"))
            if draws.random() < 0.5:  # with much to answer
                events.append(Event(stop_s - 0.02, "slow", {"factor": 30, "seconds": 1.0}))
                values = {"client": draws.randrange(num_clients), **self._ask(), "gap_s": 0.0}
                values["subjects"] = tuple(self._subject() for _ in range(30))
                events.append(Event(stop_s - 0.01, "ask", values))
        if draws.random() < 0.1:
            events.append(Event(0.0, "disk", self._disk()))  # while the server starts
        return sorted(events, key=lambda event: event.at_s)

    def _with_gateway(self, scenario: Scenario) -> Scenario:
        """The same with a gRPC gateway, and calls that are made of it."""
        listen = ListenOptions(host="127.0.0.1", unix_socket=FOLDER / "socket", grpc_port=8001)
        configs = [structs.replace(config, listen=listen) for config in scenario.configs]
        tokens = list(TOKENS.values()) if self.has_tokens else []
        drawer = CallDrawer(self.seed, tokens, has_table=self.is_table)
        stops_s = [event.at_s for event in scenario.events if event.kind == "stop"]
        its = drawer.events(scenario.events[0].at_s, scenario.events[-1].at_s, stops_s)
        events = sorted([*scenario.events, *starmap(Event, its)], key=lambda event: event.at_s)
        return replace(scenario, configs=configs, events=events, gateway=drawer.plan())

    def _ask(self):
        draws = self.draws
        count = draws.choice([1, 1, 1, 2, 5, 30])
        drips = draws.random() < 0.1
        return {
            "subjects": tuple(self._subject() for _ in range(count)),
            "options": self._options(),
            "pieces": draws.choice([3, 20]) if drips else 1,
            "gap_s": draws.choice([0.001, 0.05]) if drips else 0.0,
        }

    def _infer(self):
        count = self.draws.choice([1, 2, 5])
        return {
            "subjects": tuple(self._subject() for _ in range(count)),
            "options": self._options(),
        }

    _search = _infer

    def _cancel(self):
        draws = self.draws
        its = {**self._infer(), "number": draws.randrange(30)}
        return {**its, "after_s": draws.choice([0.0, 0.002, 0.02])}

    def _flood(self):
        draws = self.draws
        self.next_subject += 100
        return {"first": self.next_subject - 100, "in_flight": draws.choice([5, 40]), "total": 60}

    def _disk(self):
        draws = self.draws
        number = draws.choice([1, 2, 3])
        self.next_subject += 1
        fingerprint = draws.choice(["file-1", f"file-{self.next_subject}"])
        return {"model": draws.choice(["a", "a", "b"]), "number": number,
                "fingerprint": fingerprint}  # fmt: skip

    _exchange = _disk


_WEIGHTS = {"ask": 50, "infer": 8, "cancel": 8, "flood": 3, "query": 5, "bad": 4, "hang_up": 5,
            "stall": 3, "kill": 4, "slow": 3, "bad_start": 3, "bad_batch": 4, "break_engine": 5,
            "break_all": 1, "exchange": 1, "disk": 3, "configure": 5, "command": 2,
            "search": 25, "bad_search": 8, "index": 2}  # fmt: skip
_OF_COLLECTIONS = {"search", "bad_search", "index"}
_CHOICES: dict[str, dict[str, Sequence[object]]] = {
    "query": {"what": ["health", "stats", "models", "live"]},
    "bad": {"what": ["json", "empty", "length", "path", "version"]},
    "command": {"what": ["load", "unload", "load"], "model": ["a", "b"]},
    "hang_up": {"how": ["end", "reset"]},
    "stall": {"seconds": [0.05, 0.5]},
    "kill": {"number": range(4)},
    "slow": {"factor": [3, 30], "seconds": [0.1, 1.0]},
    "bad_start": {"how": ["refuse", "fail", "die", "hang", "wrong"]},
    "break_engine": {"number": range(4), "how": ["wrong", "stale", "short"]},
    "break_all": {},
    "bad_batch": {"how": ["die", "hang", "short", "long", "garbage"]},
    "configure": {"number": range(3)},
    "bad_search": {"how": ["die", "hang", "damaged", "garbage", "kill", "refuse", "die at start"]},
    "index": {},
}
"""What each value of an event may be, where one does not depend on another."""

_CALM = {"ask", "infer", "search", "cancel", "flood", "query"}
_OF_CLIENTS = {*_CALM, "bad", "hang_up", "stall", "command"}


def draw_shares(seed: int, draws: random.Random) -> Scenario:
    """Clients that have more to ask than can be answered, and what share each should have."""
    names, floods, shares = _SHARES[seed // SHARES_EVERY % len(_SHARES)]
    clients = [ClientPlan(draws.choice(["frames", "http"]), TOKENS[name]) for name in names]
    events = [
        Event(0.1, "flood", {"client": client, "first": seed * 1000 + 10_000 * client, **flood})
        for client, flood in enumerate(floods)
    ]
    instances = InstanceOptions(
        inference_engine_type="onnx", precision="fp32", devices="cpu",
        num_inference_sessions=1, max_batch_size=4,
    )  # fmt: skip
    config = ServerConfig(
        listen=ListenOptions(host="127.0.0.1"),
        auth=AuthOptions(auth_token_file=TOKENS_FILE),
        repository=RepositoryOptions(model=FOLDER / "a"),
        instances=instances,
    )
    events += [Event(0.2, "measure"), Event(0.7, "end_floods")]
    machine = {"saving": 0.3, "measures": True, "load_s": 0.0}
    disk = {"a": {1: "file-1"}}
    return Scenario(seed, [config], disk, clients, events, machine, shares=shares)


_FLOOD: dict[str, Any] = {"in_flight": 60, "total": 5000}
_SHARES = (
    (["eight", "one"], [_FLOOD] * 2, {0: (8 / 9, 0.1), 1: (1 / 9, 0.25)}),
    (
        ["two", "one", "tiny"],
        [_FLOOD, _FLOOD, {**_FLOOD, "in_flight": 1}],
        {0: (2 / 3, 0.1), 1: (1 / 3, 0.15)},
    ),
    # Who spreads requests over priorities has no more than who asks all with the highest.
    (
        ["one", "another"],
        [{**_FLOOD, "priorities": list(range(10))}, {**_FLOOD, "priorities": [9]}],
        {1: (0.5, 0.1)},
    ),
    (
        ["eight", "two", "one"],
        [_FLOOD] * 3,
        {0: (8 / 11, 0.1), 1: (2 / 11, 0.25), 2: (1 / 11, 0.3)},
    ),
)
"""The clients' tokens, what each asks, and the shares, as in `Scenario`."""
