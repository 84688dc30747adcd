"""deploy/haproxy.cfg with a real HAProxy before three real servers."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from harness.haproxy import HAPROXY, Balancer
from harness.ports import reserve_port
from harness.server import TIMEOUT_S, RunningServer
from qa_service.client import QaClient, QaClientError

TEXT = "Ada Lovelace wrote the notes in London in 1843."
INSTANT = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed (apt install haproxy)"),
]


class Replicas:
    """Three servers behind a balancer; one that is ended is started again on its port."""

    def __init__(self, model, stack: ExitStack, *flags: str) -> None:
        self._model, self._stack = model, stack
        self._flags = (*INSTANT, *flags)
        self._ports = [reserve_port() for _ in range(3)]
        self.servers = [self._start(port) for port in self._ports]
        self.balancer = Balancer(self._ports)
        stack.callback(self.balancer.close)

    def _start(self, port: int) -> RunningServer:
        where = ("--host", "127.0.0.1", "--port", str(port))
        server = RunningServer(self._model, *self._flags, *where)
        self._stack.callback(server.close)
        return server

    def restart(self, index: int) -> None:
        """Starts one again, and waits until it gets its share."""
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
        each, give_up_s = num_connections / 3, time.monotonic() + TIMEOUT_S
        counts = self._connections()
        while any(abs(count - each) > 1 for count in counts):
            assert time.monotonic() < give_up_s, counts
            time.sleep(0.1)  # connections age: there is no event to wait for
            counts = self._connections()

    def _connections(self) -> list[int]:
        """The connections of each, without ours."""
        return [stats["gauges"]["connections_open"] - 1 for stats in self.stats()]


class Crowd:
    """Clients in threads of their own, who share one QaClient and keep an account."""

    def __init__(self, port: int, num_clients: int) -> None:
        self._client = QaClient("127.0.0.1", port)
        self._stopped = threading.Event()
        self._counts: list[Counter] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_clients)]
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


@pytest.fixture
def start_replicas(builtin_model):
    with ExitStack() as stack:
        yield lambda *flags: Replicas(builtin_model, stack, *flags)


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
