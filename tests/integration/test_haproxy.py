"""deploy/haproxy.cfg with a real HAProxy before three real servers."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from harness.haproxy import HAPROXY, Balancer, config_for_http
from harness.ports import reserve_port
from harness.process import wait_until
from harness.server import RunningServer
from qa_service.client import QaClient, QaClientError

TEXT = "Ada Lovelace wrote the notes in London in 1843."
INSTANT = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")

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
        """What each has counted."""
        found = []
        for server in self.servers:
            with QaClient("127.0.0.1", server.port) as client:
                found.append(client.stats())
        return found

    def wait_for_equal_shares(self, num_connections: int) -> None:
        """Waits until each has as many connections as the others, within one of them."""
        each = num_connections / 3
        wait_until(self._connections, lambda counts: all(abs(n - each) <= 1 for n in counts))

    def _connections(self) -> list[int]:
        """The connections of each, without ours."""
        return [stats["gauges"]["connections_open"] - 1 for stats in self.stats()]


class Crowd:
    """Clients in threads of their own, who share one QaClient and keep an account."""

    def __init__(self, port: int, num_clients: int) -> None:
        self._client = QaClient("127.0.0.1", port)
        self._stopped = threading.Event()
        self._counts: list[Counter] = []
        self._threads = [
            threading.Thread(target=self._ask, daemon=True) for _ in range(num_clients)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        counts: Counter = Counter()
        self._counts.append(counts)
        while not self._stopped.is_set():
            try:
                answer = self._client.ask("Who wrote the notes?", TEXT)
                is_right = TEXT[answer.start : answer.end] == answer.answer
                counts["right" if is_right else "wrong"] += 1
            except QaClientError as error:
                counts[error.code] += 1

    def stop(self) -> Counter:
        """Ends them when they have their answers."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
        return sum(self._counts, Counter())


class KeepAlive:
    """HTTP clients in threads of their own; each keeps its connection until it is told to close."""

    def __init__(self, port: int, num_clients: int) -> None:
        self._port = port
        self._stopped = threading.Event()
        self._counts: list[Counter] = []
        self._threads = [
            threading.Thread(target=self._ask, daemon=True) for _ in range(num_clients)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        counts: Counter = Counter()
        self._counts.append(counts)
        body = json.dumps({"question": "Who wrote the notes?", "text": TEXT})
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._stopped.is_set():
            try:
                connection.request("POST", "/qa", body)  # connects again where it was closed
                reply = connection.getresponse()
                reply.read()
                counts[reply.status] += 1
            except (OSError, http.client.HTTPException) as error:
                counts[type(error).__name__] += 1
                connection.close()
        connection.close()

    def total(self) -> int:
        """How many requests have ended so far."""
        return sum(counts.total() for counts in self._counts)

    def stop(self) -> Counter:
        """Ends them when they have their answers; what came of all requests."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return sum(self._counts, Counter())


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
                assert client.ask("Who wrote the notes?", TEXT).answer == "Ada"
        answered = [s["counters"]["requests_total"]["answered"] for s in replicas.stats()]
    assert answered == [300, 300, 300]


@pytest.mark.parametrize("config", ["", config_for_http()], ids=["frames", "http"])
def test_a_drain_refuses_and_loses_nothing(start_replicas, config):
    """HAProxy hears that a server is to end before that server refuses what is asked."""
    replicas = start_replicas("--drain_delay_ms", "3000", config=config)
    crowd, clients = Crowd(replicas.balancer.port, 6), KeepAlive(replicas.balancer.port, 12)
    first = replicas.servers[0]
    first.signal(signal.SIGTERM)
    replicas.balancer.wait_for_log("qa/qa1 is stopping")
    assert first.wait() == 0, first.log
    replicas.balancer.wait_for_log("qa/qa1 is DOWN")
    ended = clients.total()
    wait_until(lambda: clients.total() >= ended + 100)
    assert set(clients.stop()) == {200}
    assert set(crowd.stop()) == {"right"}


@pytest.mark.soak
def test_no_request_is_lost_whatever_becomes_of_a_server(start_replicas):
    replicas = start_replicas("--max_connection_age_s", "2")
    crowd = Crowd(replicas.balancer.port, 30)
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
    assert set(counts) == {"right"}, counts
