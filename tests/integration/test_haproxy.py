"""deploy/haproxy.cfg with a real HAProxy before three real servers."""

import http.client
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from harness.frames import ASK, FIRST_WORD
from harness.haproxy import HAPROXY, Balancer, config_for_http
from harness.process import GIVE_UP_S, reserve_port, wait_until
from harness.server import INSTANT, RunningServer
from qa_service.client import QaClient, QaClientError
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import LoadPlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed (apt install haproxy)"),
]


class Replicas:
    """Three servers behind a balancer; one that is ended is started again on its port."""

    def __init__(self, model, stack: ExitStack, *flags: str, config: str = "") -> None:
        self._model, self._stack = model, stack
        self._flags = (*INSTANT, *flags)
        self._ports = [reserve_port() for _ in range(3)]
        self.servers = [self._start(port) for port in self._ports]
        self.balancer = Balancer(self._ports, config)
        stack.callback(self.balancer.close)

    def _start(self, port: int) -> RunningServer:
        where = ("--host", "127.0.0.1", "--port", str(port))
        server = RunningServer(self._model, *self._flags, *where)
        self._stack.callback(server.close)
        return server

    def restart(self, index: int) -> None:
        """Starts one again when it has been found down, and waits until it gets its share."""
        self.balancer.wait_for_log(f"qa/qa{index + 1} is DOWN")
        self.servers[index] = self._start(self._ports[index])
        self.balancer.wait_for_log(f"qa/qa{index + 1} is UP")

    def stats(self) -> list[dict]:
        return [server.stats() for server in self.servers]

    def wait_for_equal_shares(self, num_connections: int) -> None:
        """Waits until each has as many connections as the others, within one of them."""

        def are_equal(stats) -> bool:
            counts = [its["gauges"]["connections_open"] - 1 for its in stats]  # one is ours
            return all(abs(count - num_connections / 3) <= 1 for count in counts)

        wait_until(self.stats, are_equal)


PAUSE_S = 0.02
"""Between two questions of a client, so that a crowd that waits for a drain leaves a core to it."""


class Crowd:
    """Clients in separate threads, which ask until they are stopped.

    Args:
        clients: Of each, what asks once and returns what came of it.
        pause_s: Between two questions of a client. Without a pause, clients that share a
            `QaClient` have a connection each all the time.
    """

    def __init__(self, clients: Sequence[Callable[[], object]], pause_s: float = 0.0) -> None:
        self._stopped = threading.Event()
        self._pause_s = pause_s
        self._counts: list[Counter] = [Counter() for _ in clients]
        self._threads = [
            threading.Thread(target=self._ask, args=each, daemon=True)
            for each in zip(clients, self._counts, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: Callable[[], object], counts: Counter) -> None:
        while not self._stopped.is_set():
            counts[client()] += 1
            self._stopped.wait(self._pause_s)

    def total(self) -> int:
        return sum(counts.total() for counts in self._counts)

    def stop(self) -> Counter:
        """Ends them when they have their answers; what came of all requests."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return sum(self._counts, Counter())


class StressTest:
    """What stress_test.py does, in a thread, until it is stopped; how each request ended."""

    def __init__(self, port: int, **plan: Any) -> None:
        question = SquadQuestion("1", ASK["question"], ASK["text"], (), ())
        self._plan = LoadPlan("127.0.0.1", port, [question], duration_s=GIVE_UP_S, **plan)
        self._stopped = threading.Event()
        self._codes: Counter = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for samples in run_load(self._plan):
            self._codes.update(sample.error_code for sample in samples)
            if self._stopped.is_set():
                return

    def total(self) -> int:
        return self._codes.total()

    def stop(self) -> Counter:
        """Ends it; the requests by their error code, empty for an answer."""
        self._stopped.set()
        self._thread.join()
        return self._codes


def client_of_frames(client: QaClient) -> str:
    try:
        return client.ask(**ASK).answer
    except QaClientError as error:
        return error.code


def client_of_http(connection: http.client.HTTPConnection) -> object:
    """Keeps its connection until a reply announces the close."""
    try:
        connection.request("POST", "/qa", json.dumps(ASK))  # connects again where it was closed
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return type(error).__name__


def frames_crowd(port: int, num_clients: int, pause_s: float = 0.0) -> Crowd:
    client = partial(client_of_frames, QaClient("127.0.0.1", port))
    return Crowd([client] * num_clients, pause_s)


def http_crowd(port: int, num_clients: int) -> Crowd:
    connect = partial(http.client.HTTPConnection, "127.0.0.1", port, GIVE_UP_S)
    return Crowd([partial(client_of_http, connect()) for _ in range(num_clients)], PAUSE_S)


@pytest.fixture
def start_replicas(builtin_model):
    with ExitStack() as stack:
        yield lambda *flags, **more: Replicas(builtin_model, stack, *flags, **more)


def test_each_server_gets_its_share(start_replicas):
    """Connections are what is shared: each asks as much as the others, whoever is quick."""
    replicas = start_replicas()
    with ExitStack() as stack:
        port = replicas.balancer.port
        clients = [stack.enter_context(QaClient("127.0.0.1", port)) for _ in range(45)]
        for _ in range(20):
            for client in clients:
                assert client.ask(**ASK).answer == FIRST_WORD
        answered = [s["counters"]["requests_total"]["answered"] for s in replicas.stats()]
    assert answered == [300, 300, 300]


@pytest.mark.parametrize("config", ["", config_for_http()], ids=["frames", "http"])
def test_a_drain_refuses_and_loses_nothing(start_replicas, config):
    """HAProxy hears that a server is to end before that server refuses what is asked."""
    replicas = start_replicas("--drain_delay_ms", "3000", config=config)
    port = replicas.balancer.port
    crowd, clients = frames_crowd(port, 6, PAUSE_S), http_crowd(port, 12)
    first = replicas.servers[0]
    first.signal(signal.SIGTERM)
    replicas.balancer.wait_for_log("qa/qa1 is stopping")
    assert first.wait() == 0, first.log
    replicas.balancer.wait_for_log("qa/qa1 is DOWN")
    ended = clients.total()
    wait_until(lambda: clients.total() >= ended + 100)
    assert set(clients.stop()) == {200}
    assert set(crowd.stop()) == {FIRST_WORD}


def test_a_drain_loses_no_frame_of_a_client_that_does_not_ask_again(start_replicas):
    replicas = start_replicas("--drain_delay_ms", "3000")
    ask = partial(StressTest, replicas.balancer.port, num_simultaneous_clients=12)
    closed, open_loop = ask(), ask(rate_per_s=300.0)
    replicas.wait_for_equal_shares(24)
    first = replicas.servers[0]
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.log
    replicas.balancer.wait_for_log("qa/qa1 is DOWN")
    for load in (closed, open_loop):
        ended = load.total()
        wait_until(lambda load=load, ended=ended: load.total() >= ended + 100)
    codes = closed.stop() + open_loop.stop()
    assert set(codes) == {""}, codes


@pytest.mark.soak
def test_stopping_killing_or_suspending_a_server_loses_no_request(start_replicas):
    replicas = start_replicas("--max_connection_age_s", "2")
    crowd = frames_crowd(replicas.balancer.port, 30)
    first, second, third = replicas.servers
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    replicas.restart(0)
    second.signal(signal.SIGKILL)
    second.wait()
    replicas.restart(1)
    third.signal(signal.SIGSTOP)
    replicas.balancer.wait_for_log("qa/qa3 is DOWN")
    third.signal(signal.SIGCONT)
    replicas.balancer.wait_for_log("qa/qa3 is UP")
    replicas.wait_for_equal_shares(30)
    counts = crowd.stop()
    assert set(counts) == {FIRST_WORD}, counts
