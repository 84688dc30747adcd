"""One run of a scenario: from the server's start, through its events, to its end."""

import logging
import random
import signal
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from qa_service.errors import SetupError
from qa_service.instance import instance_options
from qa_service.server.services import collection_set
from tests.simulation import checks, inside, inside_gateway
from tests.simulation.clients import Asker, Client, ClientPlan, Talk
from tests.simulation.events import happen
from tests.simulation.gateway import Gateway
from tests.simulation.network import Network
from tests.simulation.questions import Subject
from tests.simulation.scenario import TOKENS, Scenario, draw
from tests.simulation.searching import Library
from tests.simulation.wires import Asked, Reply
from tests.simulation.workers import Machine
from tests.simulation.world import Violation, World

CALM_S = 0.3
LOOK_EVERY_S = 0.25
MAX_WAIT_S = 200.0
"""Longer than any timeout of the scenarios, with the backoffs of instances and versions."""
TIMEOUTS_S = ((instance_options, "START_TIMEOUT_S", 0.5), (collection_set, "SEARCH_TIMEOUT_S", 2.0))
"""Shorter than a server's, which are constants, so that a run has more of them."""
STRAYS_EVERY = 8
REPLAY = ".venv/bin/python -m tests.simulation --seed"


@dataclass
class Report:
    """What a run came to.

    Attributes:
        steps: How often time has moved on.
        rounds: How many rounds the loop has run.
        outcomes: Replies by their code; `answered` for answers.
        trace: A digest of all replies and when they came.
    """

    failure: Violation | None
    steps: int
    rounds: int
    outcomes: Counter[str]
    trace: int


def run(scenario: Scenario, log_level: str = "") -> Report:
    """Runs a scenario; the same one comes to the same."""
    sim = Simulation(scenario)
    state = random.getstate()
    random.seed(scenario.seed)
    failure = None
    try:
        with _Log(sim, log_level), ExitStack() as patched:
            for module, name, value in TIMEOUTS_S:
                patched.enter_context(patch.object(module, name, value))
            sim.run()
    except Violation as violation:
        failure = _first(violation)
    finally:
        random.setstate(state)
    return Report(failure, sim.world.steps, sim.world.rounds, sim.outcomes, sim.trace)


def _first(violation: Violation) -> Violation:
    """What has gone wrong before the server's end, which may raise another."""
    while isinstance(violation.__context__, Violation):
        violation = violation.__context__
    return violation


def check_seeds(seeds: range) -> None:
    """Runs the scenarios of some seeds.

    Raises:
        AssertionError: Some fail; with the commands that run these alone, and shrink them.
    """
    failures = {seed: run(draw(seed)).failure for seed in seeds}
    found = [f"{REPLAY} {seed}   {failure}" for seed, failure in failures.items() if failure]
    assert not found, "\n".join(found)


class Simulation:
    """A server, its clients and its workers.

    Attributes:
        disk: Fingerprints of the versions that are there, by model.
        fingerprints: All that a version has ever had, by model and number.
        notes: What has happened that makes some errors right.
        exceptions: Tracebacks in the server's log.
        stop_s: When the server was asked to stop; None until then.
        started_s: When all versions were ready for the first time; None until then.
        empty_since_s: Since when no request waits for an instance.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        may_pause = any(event.kind == "pause" for event in scenario.events)
        self.world = World(scenario.seed, may_pause=may_pause)
        self.machine = Machine(self.world, **scenario.machine)
        self.library = Library(self.world)
        self.network = Network(self.world, scenario.capacity)
        self.clients = [Client(plan, self.network, self) for plan in scenario.clients]
        self.gateway = Gateway(scenario.gateway, self.network)
        self.floods = []
        self.source = inside.Source(scenario.configs[0])
        self.disk = {name: dict(versions) for name, versions in scenario.disk.items()}
        self.machine.disk = self.disk
        self.fingerprints = {
            (name, n): {f} for name, versions in self.disk.items() for n, f in versions.items()
        }
        self.notes: set[str] = set()
        self.exceptions: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.trace = 0
        self.stop_s: float | None = None
        self.started_s: float | None = None
        self.is_over = False
        self.empty_since_s = self.world.time_s
        self.num_outstanding = 0
        self._measured: Counter[int] | None = None
        self._waited_s = 0.0
        self._probe: Client

    # From the beginning to the end.

    def run(self) -> None:
        """Runs until the server has ended.

        Raises:
            Violation: A promise does not hold.
        """
        for event in self.scenario.events:
            self.world.after(event.at_s, partial(happen, self, event.kind, event.values))
        last_s = max((event.at_s for event in self.scenario.events), default=0.0)
        self.world.after(last_s + CALM_S, self._calm)
        self.world.at_rest = self._check
        parts = (self.network, self.machine, self.library, self.gateway, self.disk)
        with inside.simulated(self.world, *parts):
            self.server = inside.make_server(self.scenario.configs[0], self.source)
            try:
                self.server.run()
            except SetupError as error:
                if not self.may_not_start:
                    raise Violation("end", f"the server has ended: {error}") from None
        self.is_over = True
        self._check_over()

    def signal(self, signum: int) -> None:
        """Sends the server a signal, which its loop hears at once."""
        self.world.call(self.world.signals[signum])

    def stop(self) -> None:
        if self.stop_s is None:
            self.stop_s = self.world.time_s
            self.signal(signal.SIGTERM)

    @property
    def drain_is_over(self) -> bool:
        """Whether the time to drain is over, so that what is left is not answered."""
        drain_s = self.scenario.configs[0].server.drain_timeout_ms / 1e3
        return self.stop_s is not None and self.world.time_s >= self.stop_s + drain_s

    def _calm(self) -> None:
        """No more is asked, and nothing more goes wrong; what has been asked is awaited."""
        self.machine.heal()
        self.library.heal()
        for flood in self.floods:
            flood.end()
        self._await()

    def _await(self) -> None:
        for client in self.clients:
            if client.talk:
                client.talk.hurry()
        waiting = [asked for talk in self._open_talks() for asked in talk.wire.outstanding]
        waiting += [asked for call in self.gateway.calls for asked in call.waiting.values()]
        self._look_again(self._await, self._ask_probe, waiting, "unanswered")

    def _look_again(self, look, go_on, waiting, check) -> None:
        """Goes on if nothing is waited for; looks again later if something is, but not for ever."""
        if not waiting:
            self._waited_s = 0.0
            go_on()
        elif self._waited_s > MAX_WAIT_S:
            raise Violation(check, f"after {MAX_WAIT_S} s: {waiting[0]}")
        else:
            self._waited_s += LOOK_EVERY_S
            self.world.after(LOOK_EVERY_S, look)

    def _open_talks(self) -> list[Talk]:
        return [talk for client in self.clients for talk in client.talks if not talk.has_ended]

    # The end of a run that was not stopped: it serves as it should, and nothing is held.

    def _ask_probe(self) -> None:
        if self.stop_s is not None:
            self.world.after(0.0, self._await_end)
            return
        plan = ClientPlan("frames", TOKENS["one"] if self._has_tokens else None)
        self._probe = Client(plan, self.network, self)
        self.clients.append(self._probe)
        self._probe_again()

    @property
    def _has_tokens(self) -> bool:
        return self.scenario.configs[0].auth.auth_token_file is not None

    def _probe_again(self) -> None:
        """Asks each version that is planned, until it answers."""
        missing = inside.wanted(self.server) - inside.serving(self.server)
        waiting = [f"{one} does not serve" for one in missing if "command" not in self.notes]
        if not waiting:
            for model, number, _ in sorted(inside.serving(self.server)):
                options = {"model": model, "version": number}
                subject = Subject(self.scenario.seed * 1000 + 999)
                self._probe.send(Asked("ask", (subject,), options))
        self._look_again(self._probe_again, self._await_probe, waiting, "version")

    def _await_probe(self) -> None:
        talk = self._probe.talk
        waiting = talk.wire.outstanding if talk else []
        self._look_again(self._await_probe, self._await_nothing, waiting, "probe")

    def _await_nothing(self) -> None:
        """Nothing is held, once instances have ended what nobody waits for."""
        held = [*inside.held(self.server)]
        if self.has_gateway:
            held += inside_gateway.held(self.gateway)
        self._look_again(self._await_nothing, self._check_quiet, held, "held")

    def _check_quiet(self) -> None:
        for what in inside.flows_held(self.server):
            raise Violation("flows", what)
        for check, what in inside.strays(self.server):
            raise Violation(check, what)
        if "command" not in self.notes and self.source.config is not None:
            planned = inside.planned(self.source.config)
            if planned is not None and planned != inside.wanted(self.server):
                what = f"{inside.wanted(self.server)} is planned and not {planned}"
                raise Violation("plan", what)
        self.stop()
        self.world.after(0.0, self._await_end)

    def _await_end(self) -> None:
        self._look_again(self._await_end, lambda: None, ["the server has not ended"], "end")

    def _check_over(self) -> None:
        self.world.settle()
        if processes := self._processes():
            raise Violation("orphans", f"{len(processes)} processes are left")
        for talk in self._open_talks():
            if not talk.sock.closed:
                raise Violation("sockets", "a connection is left open")

        for call in self.gateway.calls:
            raise Violation("unanswered", f"a gRPC call of {call.key} has not ended")

    def _processes(self):
        return [*self.machine.processes, *self.library.processes, *self.gateway.processes]

    # After every step.

    def _check(self) -> None:
        if self.exceptions:
            raise Violation("exception", self.exceptions[-1])
        if self.started_s is None and inside.has_started(self.server):
            self.started_s = self.world.time_s
        for what in inside.over_bounds(self.server):
            raise Violation("bound", what)
        if self.gateway.has_run():
            for what in inside_gateway.over_bounds(self.gateway):
                raise Violation("links", what)
        if inside.has_queue(self.server):
            self.empty_since_s = self.world.time_s
        if self.world.steps % STRAYS_EVERY == 0 or self.stop_s is not None:
            for check, what in inside.strays(self.server):
                raise Violation(check, what)
            for what in inside_gateway.astray(self.server, self.gateway):
                raise Violation("astray", what)

    @property
    def has_gateway(self) -> bool:
        """Whether the server has a port for gRPC."""
        return self.scenario.configs[0].listen.grpc_port > 0

    @property
    def may_not_start(self) -> bool:
        """Whether instances were kept from starting, so that the server may have none."""
        return bool(self.notes & {"bad start", "kill"}) or self.machine.has_other_files

    @property
    def request_timeout_ms(self) -> float:
        return self.scenario.configs[0].connections.request_timeout_ms or float("inf")

    @property
    def may_be_unknown(self) -> bool:
        """Whether a request that names no model may find none, or not one only."""
        configs = self.scenario.configs
        return "command" in self.notes or any(
            len(its.models) > 1 and "default" not in its.routes for its in configs
        )

    # What clients see.

    def on_sent(self, talk: Asker, asked: Asked) -> None:
        self.num_outstanding += 1
        asked.was_alone = self.num_outstanding == 1
        if asked.kind == "bad" and asked.what == "length":
            talk.reasons.add("bad length")

    def on_reply(self, talk: Asker, reply: Reply) -> None:
        code = reply.code or "answered"
        self.outcomes[code] += 1
        self.trace = hash((self.trace, code, round(self.world.time_s, 6), str(reply.answers)))
        checks.check_reply(self, talk, reply)
        if reply.says_close:
            talk.reasons.add("has said so")
        self.num_outstanding -= reply.asked is not None
        if self._measured is not None and not reply.code and talk.client in self.clients:
            self._measured[self.clients.index(talk.client)] += 1

    def on_hang_up(self, talk: Talk) -> None:
        self.num_outstanding -= sum(asked.sent_s is not None for asked in talk.wire.outstanding)

    def on_end(self, talk: Talk) -> None:
        self.on_hang_up(talk)
        checks.check_end(self, talk)

    def on_refused(self) -> None:
        if self.stop_s is None and not (self.is_over or self.may_not_start):
            raise Violation("listening", "nobody listens")

    # Shares.

    def begin_measuring(self) -> None:
        self._measured = Counter()

    def end_measuring(self) -> None:
        """Compares each client's share of the answers with what it should be at the minimum."""
        measured, self._measured = self._measured or Counter(), None
        total = sum(measured.values())
        for client, (share, tolerance) in self.scenario.shares.items():
            if total and measured[client] < share * (1 - tolerance) * total:
                what = f"client {client} has {measured[client]} of {total}, not {share:.0%}"
                raise Violation("shares", what)


class _Log(logging.Handler):
    """Takes the server's log: tracebacks are faults; the rest is printed where that is wanted."""

    def __init__(self, sim: Simulation, level: str) -> None:
        super().__init__()
        self._sim = sim
        self._level = level

    def __enter__(self):
        logger = logging.getLogger("qa_service")
        self._before = (logger.level, logger.propagate)
        logger.setLevel(self._level.upper() or logging.ERROR)
        logger.propagate = False
        logger.addHandler(self)

    def __exit__(self, *_):
        logger = logging.getLogger("qa_service")
        logger.removeHandler(self)
        logger.setLevel(self._before[0])
        logger.propagate = self._before[1]

    def emit(self, record):
        if self._level:
            print(f"{(self._sim.world.time_s - 1000) * 1e3:10.3f} ms  {record.getMessage()}")
        if record.exc_info:
            self._sim.exceptions.append(self.format(record))
