"""The gRPC gateway among faults: killed, drained, attacked, with TLS and tokens."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.frames import ASK, FIRST_WORD, frame, receive, reset_at_close
from harness.gateway import LISTENS, GatewayServer, answers, inputs, running_gateway
from harness.process import GIVE_UP_S, held_still, num_descriptors, reserve_port, wait_until
from harness.server import INSTANT, ROOT, RunningServer
from qa_service.sidecars.grpc_gateway.links import MAX_LINKS
from tests.certificates import Certificates
from tests.grpc_requests import (
    Health,
    HealthRequest,
    Stub,
    failure,
    grpc,
    refused,
    triton,
    typed_request,
)
from tests.http_calls import bearer, get
from tests.programs import token_flags
from tests.support import present

CODES = grpc.StatusCode
TOKEN, OTHER = "3bQ1xT0yqWcV7uKfJm2sZg", "Zt0xT0yqWcV7uKfJm2sZgA"
SERVING, NOT_SERVING = 1, 2
OTHER_CHANNEL = [("grpc.use_local_subchannel_pool", 1)]
"""Without it, two channels of a process share one connection, and are one peer."""

UNREAD = "disconnected with unread answers in its stream"
UNREAD_STREAM = """
import itertools, sys, threading
from tests.grpc_requests import Stub, grpc, typed_request

requests = (typed_request(id=f"{number:0500}") for number in itertools.count())
with grpc.insecure_channel(sys.argv[1]) as channel:
    stream = Stub(channel).ModelStreamInfer(requests)
    threading.Event().wait()
"""
"""A client that asks and never reads."""


def is_answered(client, **options) -> bool:
    return answers(client.infer("builtin", inputs(triton, ["Who?"]), **options)) == [FIRST_WORD]


def code_of(call, *arguments, **options):
    return failure(call, *arguments, **options).code()


class TestDeath:
    def test_a_killed_gateway_is_restarted(self, builtin_model):
        with running_gateway(builtin_model, *INSTANT) as gateway:
            first = gateway.pid
            with (
                gateway.server.connect() as frames,
                triton.InferenceServerClient(gateway.address) as client,
            ):
                assert is_answered(client)
                os.kill(first, signal.SIGKILL)
                for _ in range(100):
                    frames.sendall(frame(ASK))
                    assert receive(frames)["answer"] == FIRST_WORD
                gateway.server.wait_for_log(LISTENS, 2)
                assert gateway.pid != first
            with triton.InferenceServerClient(gateway.address) as client:
                assert is_answered(client)
            gateway.server.wait_for_log("the gRPC gateway was killed by SIGKILL")

    def test_a_call_in_flight_of_a_killed_gateway_gets_unavailable(self, builtin_model):
        flags = (*INSTANT, "--max_batch_size", "1")
        with (
            running_gateway(builtin_model, *flags) as gateway,
            grpc.insecure_channel(gateway.address) as channel,
        ):
            with held_still(gateway.instance_pids):
                call = Stub(channel).ModelInfer.future(typed_request())
                gateway.wait_for_flight(1)
                os.kill(gateway.pid, signal.SIGKILL)
                assert call.exception(GIVE_UP_S).code() is CODES.UNAVAILABLE
                gateway.wait_for_count("abandoned", 1)
            gateway.server.wait_for_log(LISTENS, 2)

    def test_the_gateway_ends_with_a_killed_server(self, builtin_model):
        server = RunningServer(builtin_model, *INSTANT, "--grpc_port", str(port := reserve_port()))
        try:
            pid = GatewayServer(server, port).pid
            server.process.kill()
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
        finally:
            server.close()


class TestDrain:
    def test_nothing_is_lost_under_load(self, builtin_model):
        """Each call is answered, or gets UNAVAILABLE; streams answer what they have read."""
        outcomes: list[object] = []
        begun = threading.Barrier(6)

        def ask(gateway):
            with grpc.insecure_channel(gateway.address) as channel:
                stub = Stub(channel)
                begun.wait(GIVE_UP_S)
                while True:
                    calls = [stub.ModelInfer.future(typed_request()) for _ in range(8)]
                    errors = [call.exception(GIVE_UP_S) for call in calls]
                    outcomes.extend(error and error.code() for error in errors)
                    if any(errors):
                        return

        with running_gateway(builtin_model, *INSTANT) as gateway:
            threads = [threading.Thread(target=ask, args=[gateway]) for _ in range(5)]
            for thread in threads:
                thread.start()
            begun.wait(GIVE_UP_S)
            gateway.wait_for_count("answered", 200)
            gateway.server.signal(signal.SIGTERM)
            for thread in threads:
                thread.join(GIVE_UP_S)
            assert gateway.server.wait() == 0
            told = outcomes.count(None)
            assert set(outcomes) == {None, CODES.UNAVAILABLE}
            assert told >= 200
            assert "Traceback" not in gateway.server.log

    def test_calls_in_flight_are_answered_and_streams_end(self, builtin_model):
        found: list[tuple[Any, Any]] = []
        flags = (*INSTANT, "--max_batch_size", "1")
        with running_gateway(builtin_model, *flags) as gateway:
            channel = grpc.insecure_channel(gateway.address)
            client = triton.InferenceServerClient(gateway.address)
            watching = Health(channel).Watch(HealthRequest())
            assert next(watching).status == SERVING
            client.start_stream(lambda result, error: found.append((result, error)))
            with held_still(gateway.instance_pids):
                call = Stub(channel).ModelInfer.future(typed_request())
                for number in range(3):
                    client.async_stream_infer(
                        "builtin", inputs(triton, ["Who?"]), request_id=str(number)
                    )
                gateway.wait_for_flight(4)
                gateway.server.signal(signal.SIGTERM)
                gateway.server.wait_for_log("the gRPC gateway drains")
                assert next(watching).status == NOT_SERVING
                assert list(watching) == []
            assert call.result(GIVE_UP_S).model_name == "builtin"
            assert gateway.server.wait() == 0
            client.stop_stream()
            assert [answers(result) for result, _ in found[:3]] == [[FIRST_WORD]] * 3
            assert [error.status() for _, error in found[3:]] == ["StatusCode.UNAVAILABLE"]
            channel.close()

    def test_health_reports_not_serving_while_a_draining_server_answers(self, builtin_model):
        flags = ("--drain_delay_ms", "300000")
        with running_gateway(builtin_model, *INSTANT, *flags) as gateway:
            with grpc.insecure_channel(gateway.address) as channel:
                health = Health(channel)
                gateway.server.signal(signal.SIGTERM)
                gateway.server.wait_for_log("draining")
                told = health.Check(HealthRequest()).status
                assert told == NOT_SERVING
                assert Stub(channel).ModelInfer(typed_request()).model_name == "builtin"
            gateway.server.signal(signal.SIGTERM)
            assert gateway.server.wait() == 0


HOSTILE = {
    "http/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(4096),
    "noise": bytes(range(256)) * 40,
    "a frame of ours": frame(ASK),
    "half a preface": b"PRI * HTTP/2.0\r\n",
    "a preface and noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 40,
    "a frame too long": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00\0\0\0\x01",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(500),
}


NONSENSE = b"\xff\xff\xff"


class TestHostile:
    @pytest.fixture(scope="class")
    @classmethod
    def gateway(cls, builtin_model):
        with running_gateway(builtin_model, *INSTANT) as running:
            yield running

    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("ends", ["closes", "resets"])
    def test_bytes_that_are_not_grpc_disturb_nobody(self, gateway, name, ends):
        pid = gateway.pid
        with socket.create_connection(("localhost", gateway.port), GIVE_UP_S) as sock:
            if ends == "resets":
                reset_at_close(sock)
            sock.sendall(HOSTILE[name])
        with triton.InferenceServerClient(gateway.address) as client:
            assert is_answered(client)
        assert gateway.pid == pid

    def test_bodies_that_are_not_messages_get_an_error(self, gateway):
        with grpc.insecure_channel(gateway.address) as channel:
            for method in ("ModelInfer", "ServerLive", "RepositoryModelLoad"):
                ask = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
                assert code_of(ask, NONSENSE) is CODES.INVALID_ARGUMENT
            for method in ("Check", "Watch"):
                ask = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
                assert code_of(list, ask(NONSENSE)) is CODES.INVALID_ARGUMENT
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            [told] = stream(iter([NONSENSE]))
            assert b"not a ModelInferRequest" in told
            name = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            [told] = channel.stream_stream(name)(iter([NONSENSE]))
            assert told
            assert code_of(channel.unary_unary("/nothing/here"), b"") is CODES.UNIMPLEMENTED
        with triton.InferenceServerClient(gateway.address) as client:
            assert is_answered(client)

    def test_an_abandoned_stream_cancels_its_requests(self, gateway):
        before = gateway.counted("cancelled")
        client = triton.InferenceServerClient(gateway.address)
        with held_still(gateway.instance_pids):
            client.start_stream(lambda result, error: None)
            for number in range(10):
                client.async_stream_infer(
                    "builtin", inputs(triton, ["Who?"]), request_id=str(number)
                )
            gateway.wait_for_flight(10)
            client.stop_stream(cancel_requests=True)
            gateway.wait_for_count("cancelled", before + 10)
        client.close()

    def test_a_lost_peer_with_unread_answers_is_one_line_in_the_log(self, gateway):
        before = gateway.counted("answered")
        client = subprocess.Popen([sys.executable, "-c", UNREAD_STREAM, gateway.address], cwd=ROOT)
        gateway.wait_for_count("answered", before + 100)
        with triton.InferenceServerClient(gateway.address) as other:

            def only_others_are_answered(_):
                """As no answer of the stream can be written, no more of its requests are read.

                A stream that goes on, however slowly, has one read while others are answered
                again and again.
                """
                count = gateway.counted("answered")
                return is_answered(other) and gateway.counted("answered") == count + 1

            wait_until(lambda: all(map(only_others_are_answered, range(200))))
            client.kill()
            client.wait()
            gateway.server.wait_for_log(UNREAD)
            assert is_answered(other)
        lines = [line for line in gateway.server.log.splitlines() if UNREAD in line]
        assert len(lines) == 1
        assert " INFO " in lines[0]

    def test_a_peer_has_one_connection_for_each_token(self, builtin_model):
        """On a new gateway: earlier peers' connections end after a silence, perhaps meanwhile."""
        with (
            running_gateway(builtin_model, *INSTANT) as gateway,
            grpc.insecure_channel(gateway.address) as channel,
        ):
            open_before = gateway.server.stats()["gauges"]["connections_open"]
            calls = []
            with held_still(gateway.instance_pids):
                stub = Stub(channel)
                for number, token in enumerate([None, None, TOKEN, OTHER, OTHER], 1):
                    metadata = [("authorization", f"Bearer {token}")] if token else []
                    calls.append(stub.ModelInfer.future(typed_request(), metadata=metadata))
                    gateway.wait_for_flight(number)
                assert gateway.server.stats()["gauges"]["connections_open"] == open_before + 3

    def test_invalid_tokens_do_not_take_connections_from_others(self, builtin_model):
        """More at a time than there may be connections, then one after the other."""
        flags = ("--max_connections", "80", "--max_in_flight_per_connection", "1")
        with (
            running_gateway(builtin_model, *INSTANT, *flags) as gateway,
            grpc.insecure_channel(gateway.address) as channel,
            grpc.insecure_channel(gateway.address, OTHER_CHANNEL) as other,
        ):
            with held_still(gateway.instance_pids):
                calls = [ask_with(channel, f"made-up-{n}") for n in range(200)]
                gateway.wait_for_flight(MAX_LINKS)
                codes = {call.code() for call in calls if call.done() and call.exception()}
                assert codes <= {CODES.RESOURCE_EXHAUSTED}
                health = Health(other).Check(HealthRequest(), timeout=GIVE_UP_S)
                assert health.status == SERVING
                honest = ask_with(other, "honest")
                gateway.wait_for_flight(MAX_LINKS + 1)
            assert honest.result(GIVE_UP_S).model_name == "builtin"

    def test_idle_peers_are_disconnected_for_new_ones(self, builtin_model):
        with running_gateway(builtin_model, *INSTANT, "--max_connections", "5") as gateway:
            for _ in range(12):
                with grpc.insecure_channel(gateway.address, OTHER_CHANNEL) as channel:
                    assert Stub(channel).ModelInfer(typed_request()).model_name == "builtin"
            gateway.server.wait_for_log("makes room")


class TestSilentPeers:
    """Connections that have said hello and then nothing."""

    def test_the_longest_silent_is_closed_for_a_new_one_and_none_that_asks(self, builtin_model):
        with (
            running_gateway(builtin_model, *INSTANT, "--max_connections", "20") as gateway,
            contextlib.ExitStack() as stack,
            grpc.insecure_channel(gateway.address, OTHER_CHANNEL) as busy,
        ):
            with held_still(gateway.instance_pids):
                asked = ask_with(busy, "")
                gateway.wait_for_flight(1)
                silent = [stack.enter_context(greeted(gateway.address)) for _ in range(40)]
                wait_until(lambda: sum(map(is_closed, silent)) == 21)
                assert is_closed(silent[0])
                assert not is_closed(silent[-1])
                with grpc.insecure_channel(gateway.address) as channel:
                    health = Health(channel).Check(HealthRequest(), timeout=GIVE_UP_S)
                    assert health.status == SERVING
                before = num_descriptors(gateway.pid)
                for _ in range(3):  # looks that close some
                    silent.extend(stack.enter_context(greeted(gateway.address)) for _ in range(10))
                    wait_until(lambda: sum(map(is_closed, silent)) >= len(silent) - 20)
                assert num_descriptors(gateway.pid) <= before + 20
            assert asked.result(GIVE_UP_S).model_name == "builtin"
            gateway.server.wait_for_log("is closed to make room")

    def test_with_few_descriptors_it_says_so_and_answers(self, builtin_model):
        limit = ("prlimit", "--nofile=300:300")
        with (
            running_gateway(builtin_model, *INSTANT, wrapper=limit) as gateway,
            contextlib.ExitStack() as stack,
        ):
            gateway.server.wait_for_log("at most 54 of --max_connections 1000 peers fit")
            silent = [stack.enter_context(greeted(gateway.address)) for _ in range(100)]
            wait_until(lambda: sum(map(is_closed, silent)) >= 46)
            with grpc.insecure_channel(gateway.address) as channel:
                answer = Stub(channel).ModelInfer(typed_request(), timeout=GIVE_UP_S)
                assert answer.model_name == "builtin"


def greeted(address):
    """A connection on which the gateway waits for a call."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), GIVE_UP_S)
    sock.sendall(TestPings.PREFACE)
    assert sock.recv(1)
    sock.setblocking(False)
    return sock


def is_closed(sock):
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def ask_with(channel, token):
    metadata = [("authorization", f"Bearer {token}")]
    return Stub(channel).ModelInfer.future(typed_request(), metadata=metadata)


class TestPings:
    """A client that sends nothing but pings, as keepalive does."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"01234567"
    TOO_MANY = b"too_many_pings"

    def test_a_client_that_only_pings_is_disconnected(self, builtin_model):
        with (
            running_gateway(builtin_model, *INSTANT) as gateway,
            socket.create_connection(("localhost", gateway.port), GIVE_UP_S) as sock,
        ):
            sock.sendall(self.PREFACE + self.PING * 20)
            received = b""
            while self.TOO_MANY not in received:
                received += (data := sock.recv(4096))
                assert data


class TestTokens:
    @pytest.fixture(scope="class")
    @classmethod
    def gateway(cls, builtin_model, tmp_path_factory):
        tokens = token_flags(tmp_path_factory.mktemp("tokens"), TOKEN, f"{OTHER} admin")
        with running_gateway(builtin_model, *INSTANT, *tokens) as running:
            yield running

    def test_a_call_without_token_is_unauthenticated(self, gateway):
        with triton.InferenceServerClient(gateway.address) as client:
            assert is_answered(client, headers={"authorization": f"Bearer {TOKEN}"})
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
                with refused("UNAUTHENTICATED"):
                    is_answered(client, headers=headers)
                with refused("UNAUTHENTICATED"):
                    client.get_model_metadata("builtin", headers=headers)
            assert is_answered(client, headers={"authorization": f"Bearer {TOKEN}"})

    def test_a_refused_token_keeps_no_connection(self, gateway):
        with grpc.insecure_channel(gateway.address) as channel:
            open_before = num_connections(gateway)
            for number in range(50):
                call = ask_with(channel, f"made-up-{number}")
                assert call.exception(GIVE_UP_S).code() is CODES.UNAUTHENTICATED
            wait_until(lambda: num_connections(gateway) <= open_before)

    def test_a_stream_without_token_is_unauthenticated(self, gateway):
        found: list[Any] = []
        with triton.InferenceServerClient(gateway.address) as client:
            client.start_stream(lambda result, error: found.append(error))
            client.async_stream_infer("builtin", inputs(triton, ["Who?"]))
            client.stop_stream()
        [error] = found
        assert "wants a token" in error.message()

    def test_health_needs_no_token(self, gateway):
        with grpc.insecure_channel(gateway.address) as channel:
            health = Health(channel)
            assert health.Check(HealthRequest()).status == SERVING
            of_model = HealthRequest(service="builtin")
            assert code_of(health.Check, of_model) is CODES.UNAUTHENTICATED
            metadata = [("authorization", f"Bearer {TOKEN}")]
            assert health.Check(of_model, metadata=metadata).status == SERVING

    def test_loading_models_needs_a_token_with_that_right(self, gateway):
        with triton.InferenceServerClient(gateway.address) as client:
            client.load_model("builtin", headers={"authorization": f"Bearer {OTHER}"})
            with refused("PERMISSION_DENIED"):
                client.unload_model("builtin", headers={"authorization": f"Bearer {TOKEN}"})


def num_connections(gateway) -> int:
    report = get(gateway.server.port, "/stats", bearer(TOKEN)).json
    return report["gauges"]["connections_open"]


class TestTls:
    @staticmethod
    def client(gateway, its, *, shows=None):
        """A client that trusts the authority, and shows a certificate of the same or another."""
        files = {"root_certificates": str(its.ca)}
        if shows:
            files |= {
                "private_key": str(shows.client_key),
                "certificate_chain": str(shows.client_cert),
            }
        return triton.InferenceServerClient(gateway.address, ssl=True, **files)

    def test_a_new_certificate_is_used_after_a_reload(self, builtin_model, tmp_path):
        its = Certificates(tmp_path)
        with running_gateway(builtin_model, *INSTANT, *its.server_flags) as gateway:
            assert served_certificate(gateway) == first_certificate(its.cert)
            old = first_certificate(its.cert)
            renewed = Certificates(tmp_path)  # in the same files
            gateway.server.signal(signal.SIGHUP)
            wait_until(lambda: served_certificate(gateway) != old)
            assert served_certificate(gateway) == first_certificate(renewed.cert)
            with self.client(gateway, renewed) as client:
                assert is_answered_over_tls(client)

    def test_a_client_needs_a_certificate_where_one_is_required(
        self, builtin_model, certificates, tmp_path
    ):
        flags = (*certificates.server_flags, "--tls_client_ca", str(certificates.ca))
        with running_gateway(builtin_model, *INSTANT, *flags) as gateway:
            with self.client(gateway, certificates, shows=certificates) as client:
                assert is_answered_over_tls(client)
            for shown in (None, Certificates(tmp_path)):
                its = self.client(gateway, certificates, shows=shown)
                with its as client, refused("UNAVAILABLE"):
                    client.is_server_live()
            with triton.InferenceServerClient(gateway.address) as plain, refused("UNAVAILABLE"):
                plain.is_server_live()


def is_answered_over_tls(client) -> bool:
    return client.is_server_live() and is_answered(client)


def served_certificate(gateway) -> bytes:
    """What the gateway shows, whoever has signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("localhost", gateway.port), GIVE_UP_S) as sock,
        context.wrap_socket(sock) as wrapped,
    ):
        return present(wrapped.getpeercert(binary_form=True))


def first_certificate(path: Path) -> bytes:
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(path.read_text().partition(end)[0] + end)
