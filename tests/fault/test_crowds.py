"""As many connections as there may be: who makes room, and that probes are answered."""

import socket

import pytest

from harness.frames import ASK, FIRST_WORD, frame, receive
from harness.gateway import running_gateway
from harness.process import GIVE_UP_S, held_still, wait_until
from harness.server import INSTANT, running_server
from qa_service.client import QaClient
from qa_service.server.front.open_connections import RESERVE
from tests.http_calls import bearer, get, post
from tests.programs import token_flags

BOUND = 6
BOUND_FLAGS = (*INSTANT, "--max_connections", str(BOUND), "--max_batch_size", "1")
PROBES = ("/health", "/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready")
TOKEN = "a-token-of-the-tests"


def busy_connections(server, number=BOUND, **auth) -> list[socket.socket]:
    """Connections that wait for an answer each, on a server whose instances are held."""
    socks = [server.connect() for _ in range(number)]
    for sock in socks:
        if auth:
            sock.sendall(frame({"type": "auth", **auth}))
            assert receive(sock)["auth"] == "ok"
        sock.sendall(frame(ASK))
    return socks


def test_probes_are_answered_among_busy_connections(builtin_model):
    grpc = pytest.importorskip("grpc", reason="there is no grpcio")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with running_gateway(builtin_model, *BOUND_FLAGS) as gateway:
        server = gateway.server
        with held_still(gateway.instance_pids):
            busy = busy_connections(server)
            wait_until(lambda: server.stats()["gauges"]["requests_in_flight"] == BOUND)
            for _ in range(3):
                assert [get(server.port, path).status for path in PROBES] == [200] * len(PROBES)
                assert server.health()["live"]
                with grpc.insecure_channel(gateway.address) as channel:
                    check = health_pb2_grpc.HealthStub(channel).Check
                    asked = health_pb2.HealthCheckRequest()
                    assert check(asked, timeout=GIVE_UP_S).status == 1  # SERVING
        assert [receive(sock)["answer"] for sock in busy] == [FIRST_WORD] * BOUND
        for sock in busy:
            sock.close()


def test_probes_are_answered_without_a_token_while_tokens_are_required(builtin_model, tmp_path):
    with running_server(builtin_model, *BOUND_FLAGS, *token_flags(tmp_path, TOKEN)) as server:
        with held_still(server.worker_pids()):
            busy = busy_connections(server, token=TOKEN)
            wait_until(
                lambda: get(server.port, "/stats", bearer(TOKEN)).json["gauges"][
                    "requests_in_flight"
                ],
                lambda found: found == BOUND,
            )
            assert [get(server.port, path).status for path in PROBES] == [200] * len(PROBES)
        for sock in busy:
            sock.close()


def test_a_question_is_refused_while_all_connections_are_busy(builtin_model):
    with running_server(builtin_model, *BOUND_FLAGS) as server:
        with held_still(server.worker_pids()):
            busy = busy_connections(server)
            wait_until(lambda: server.stats()["gauges"]["requests_in_flight"] == BOUND)
            with server.connect() as sock:
                sock.sendall(frame({"id": 7, **ASK}))
                error = receive(sock)["error"]
                assert (error["code"], error["retryable"]) == ("queue_full", True)
                assert error["retry_after_ms"]
                assert sock.recv(1) == b""
            reply = post(server.port, "/qa", ASK)
            assert (reply.status, reply.headers["Connection"]) == (503, "close")
        assert [receive(sock)["answer"] for sock in busy] == [FIRST_WORD] * BOUND
        assert post(server.port, "/qa", ASK).status == 200
        for sock in busy:
            sock.close()


@pytest.mark.parametrize("sent", [b"", frame(ASK)[:9], b"GET / HT"], ids=["none", "frame", "head"])
def test_a_full_server_closes_silent_connections_for_new_ones(builtin_model, sent):
    """Whatever part of a message they have sent; it is said once."""
    with running_server(builtin_model, *BOUND_FLAGS) as server:
        silent = [server.connect() for _ in range(BOUND + 3 * RESERVE)]
        for sock in silent:
            sock.sendall(sent)
        with QaClient("localhost", server.port) as client:
            for _ in range(3):
                assert client.ask(ASK["question"], ASK["text"]).answer == FIRST_WORD
        assert get(server.port, "/health").status == 200
        server.wait_for_log("is closed to make room")
        assert server.log.count("is closed to make room") == 1
        for sock in silent:
            sock.close()


def test_silent_connections_do_not_take_all_descriptors(builtin_model):
    """With a low limit fewer connections are open than --max_connections."""
    limit = ("prlimit", "--nofile=200:200")
    with running_server(builtin_model, *INSTANT, wrapper=limit) as server:
        silent = [server.connect() for _ in range(400)]
        with QaClient("localhost", server.port) as client:
            assert client.ask(ASK["question"], ASK["text"]).answer == FIRST_WORD
        assert "cannot accept" not in server.log
        for one in silent:
            one.close()


def test_the_longest_silent_connection_is_closed_first(builtin_model):
    with running_server(builtin_model, *BOUND_FLAGS) as server:
        socks = [server.connect() for _ in range(BOUND)]
        for sock in [*socks, *socks[:2], *socks[3:]]:
            sock.sendall(frame(ASK))
            assert receive(sock)["answer"] == FIRST_WORD
        with server.connect() as new:
            new.sendall(frame(ASK))
            assert receive(new)["answer"] == FIRST_WORD
            assert socks[2].recv(1) == b""
            for sock in socks[:2] + socks[3:]:
                sock.sendall(frame(ASK))
                assert receive(sock)["answer"] == FIRST_WORD
        for sock in socks:
            sock.close()
