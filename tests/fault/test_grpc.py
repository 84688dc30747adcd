"""The gRPC gateway among faults: killed, drained, attacked, with TLS and tokens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.frames import frame, receive
from harness.gateway import LISTENS, GatewayServer, answers, inputs, running_gateway
from harness.ports import reserve_port
from harness.process import GIVE_UP_S, held_still, wait_until
from harness.questions import ASK, FIRST_WORD, TEXT
from harness.server import INSTANT, ROOT, RunningServer, running_server
from qa_service.aio import AsyncQaClient
from qa_service.client import QaClient
from tests.certificates import Certificates

grpc = pytest.importorskip("grpc", reason="there is no grpcio")
triton = pytest.importorskip("tritonclient.grpc", reason="there is no tritonclient")

from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402

CODES = grpc.StatusCode
HEALTH = health_pb2_grpc.HealthStub
TOKEN, OTHER = "3bQ1xT0yqWcV7uKfJm2sZg", "Zt0xT0yqWcV7uKfJm2sZgA"
BEARER = {"authorization": f"Bearer {TOKEN}"}
SERVING, NOT_SERVING = 1, 2


def is_answered(client, **options) -> bool:
    return answers(client.infer("builtin", inputs(triton, ["Who?"]), **options)) == [FIRST_WORD]


def code_of(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value.code()


def refusal(call, *arguments, **options) -> str:
    """The status by which a call of Triton's client fails."""
    with pytest.raises(triton.InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value.status().removeprefix("StatusCode.")


@contextmanager
def stub_of(gateway, service=service_pb2_grpc.GRPCInferenceServiceStub):
    with grpc.insecure_channel(gateway.address) as channel:
        yield service(channel)


def start(*flags, **env):
    """Runs a server that cannot start."""
    return subprocess.run(
        [sys.executable, "server.py", "--port", "0", *INSTANT, *flags],
        capture_output=True, text=True, cwd=ROOT, timeout=GIVE_UP_S, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


def request() -> service_pb2.ModelInferRequest:
    """A question with typed contents."""
    columns = {"question": ASK["question"], "text": TEXT}
    made = service_pb2.ModelInferRequest(model_name="builtin")
    for name, word in columns.items():
        its = made.inputs.add(name=name, datatype="BYTES", shape=[1])
        its.contents.bytes_contents.append(word.encode())
    return made


class TestDeath:
    def test_a_gateway_that_is_killed_comes_back(self, builtin_model):
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
            assert "the gRPC gateway was killed by SIGKILL; it starts again" in gateway.server.log

    def test_a_call_in_flight_is_told(self, builtin_model):
        flags = (*INSTANT, "--max_batch_size", "1")
        with running_gateway(builtin_model, *flags) as gateway, stub_of(gateway) as stub:
            with held_still(gateway.instance_pids):
                call = stub.ModelInfer.future(request())
                gateway.wait_for_flight(1)
                os.kill(gateway.pid, signal.SIGKILL)
                assert call.exception(GIVE_UP_S).code() is CODES.UNAVAILABLE
                gateway.wait_for_count("abandoned", 1)
            gateway.server.wait_for_log(LISTENS, 2)

    def test_it_does_not_outlive_the_server(self, builtin_model):
        server = RunningServer(builtin_model, *INSTANT, "--grpc_port", str(port := reserve_port()))
        try:
            pid = GatewayServer(server, port).pid
            server.process.kill()
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
        finally:
            server.close()

    def test_without_the_extra_the_start_fails(self, builtin_model, tmp_path):
        """A module of this name that raises what Python does where there is none."""
        fault = 'raise ModuleNotFoundError("No module named \'grpc\'", name="grpc")'
        (tmp_path / "grpc.py").write_text(fault)
        flags = ("--model", str(builtin_model), "--grpc_port", str(reserve_port()))
        ran = start(*flags, PYTHONPATH=str(tmp_path))
        assert ran.returncode == 2
        assert ran.stderr.endswith("grpc is missing: pip install 'qa-server[grpc]'\n")

    def test_a_port_that_is_taken_fails_the_start(self, builtin_model):
        with socket.create_server(("127.0.0.1", port := reserve_port())):
            ran = start("--model", str(builtin_model), "--grpc_port", str(port))
        assert ran.returncode == 2
        assert ran.stderr.endswith(f"the gRPC gateway cannot listen on localhost:{port}\n")


class TestDrain:
    def test_nothing_is_lost_under_load(self, builtin_model):
        """Each call is answered, or told UNAVAILABLE; streams answer what they have read."""
        outcomes: list[object] = []
        begun = threading.Barrier(6)

        def ask(gateway):
            with stub_of(gateway) as stub:
                begun.wait(GIVE_UP_S)
                while True:
                    calls = [stub.ModelInfer.future(request()) for _ in range(8)]
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
        found: list[tuple[object, object]] = []
        flags = (*INSTANT, "--max_batch_size", "1")
        with (
            running_gateway(builtin_model, *flags) as gateway,
            stub_of(gateway, HEALTH) as health,
            stub_of(gateway) as stub,
        ):
            client = triton.InferenceServerClient(gateway.address)
            watching = health.Watch(health_pb2.HealthCheckRequest())
            assert next(watching).status == SERVING
            client.start_stream(lambda result, error: found.append((result, error)))
            with held_still(gateway.instance_pids):
                call = stub.ModelInfer.future(request())
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

    def test_health_says_so_while_the_server_serves_on(self, builtin_model):
        flags = ("--drain_delay_ms", "300000")
        with running_gateway(builtin_model, *INSTANT, *flags) as gateway:
            with stub_of(gateway, HEALTH) as health, stub_of(gateway) as stub:
                gateway.server.signal(signal.SIGTERM)
                gateway.server.wait_for_log("draining")
                assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
                assert stub.ModelInfer(request()).model_name == "builtin"
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
    def test_bytes_that_are_no_grpc(self, gateway, name, ends):
        pid = gateway.pid
        with socket.create_connection(("localhost", gateway.port), GIVE_UP_S) as sock:
            if ends == "resets":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall(HOSTILE[name])
        with triton.InferenceServerClient(gateway.address) as client:
            assert is_answered(client)
        assert gateway.pid == pid

    def test_bodies_that_are_no_message(self, gateway):
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

    def test_a_stream_that_is_given_up_frees_its_work(self, gateway):
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

    def test_a_peer_has_one_connection_for_each_token(self, gateway):
        open_before = gateway.server.stats()["gauges"]["connections_open"]
        calls = []
        with held_still(gateway.instance_pids), stub_of(gateway) as stub:
            for number, token in enumerate([None, None, TOKEN, OTHER, OTHER], 1):
                metadata = [("authorization", f"Bearer {token}")] if token else []
                calls.append(stub.ModelInfer.future(request(), metadata=metadata))
                gateway.wait_for_flight(number)
            assert gateway.server.stats()["gauges"]["connections_open"] == open_before + 3


class TestTokens:
    @pytest.fixture(scope="class")
    @classmethod
    def gateway(cls, builtin_model, tmp_path_factory):
        tokens = tmp_path_factory.mktemp("tokens") / "tokens"
        tokens.write_text(f"{TOKEN}\n{OTHER} admin\n")
        tokens.chmod(0o600)
        flags = (*INSTANT, "--auth_token_file", str(tokens))
        with running_gateway(builtin_model, *flags) as running:
            yield running

    def test_a_token_is_wanted(self, gateway):
        with triton.InferenceServerClient(gateway.address) as client:
            assert is_answered(client, headers=BEARER)
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
                assert refusal(is_answered, client, headers=headers) == "UNAUTHENTICATED"
                metadata = client.get_model_metadata
                assert refusal(metadata, "builtin", headers=headers) == "UNAUTHENTICATED"
            assert is_answered(client, headers=BEARER)

    def test_a_stream_wants_one(self, gateway):
        found: list[object] = []
        with triton.InferenceServerClient(gateway.address) as client:
            client.start_stream(lambda result, error: found.append(error))
            client.async_stream_infer("builtin", inputs(triton, ["Who?"]))
            client.stop_stream()
        [error] = found
        assert "wants a token" in error.message()

    def test_health_is_open(self, gateway):
        with stub_of(gateway, HEALTH) as health:
            assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
            of_model = health_pb2.HealthCheckRequest(service="builtin")
            assert code_of(health.Check, of_model) is CODES.UNAUTHENTICATED
            assert health.Check(of_model, metadata=list(BEARER.items())).status == SERVING

    def test_models_are_loaded_with_the_right(self, gateway):
        with triton.InferenceServerClient(gateway.address) as client:
            client.load_model("builtin", headers={"authorization": f"Bearer {OTHER}"})
            assert refusal(client.unload_model, "builtin", headers=BEARER) == "PERMISSION_DENIED"


class TestTls:
    @staticmethod
    def client(gateway, its, *, with_certificate=False):
        files = {"root_certificates": str(its.ca)}
        if with_certificate:
            files |= {"private_key": str(its.client_key), "certificate_chain": str(its.client_cert)}
        return triton.InferenceServerClient(gateway.address, ssl=True, **files)

    def test_with_the_servers_certificate(self, builtin_model, tmp_path):
        its = Certificates(tmp_path)
        with running_gateway(builtin_model, *INSTANT, *its.server_flags) as gateway:
            with self.client(gateway, its) as client:
                assert is_answered_over_tls(client)
            with triton.InferenceServerClient(gateway.address) as plain:
                assert refusal(plain.is_server_live) == "UNAVAILABLE"

    def test_a_new_certificate_is_taken_at_a_reload(self, builtin_model, tmp_path):
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

    def test_client_certificates(self, builtin_model, tmp_path):
        its = Certificates(tmp_path)
        flags = (*its.server_flags, "--tls_client_ca", str(its.ca))
        with running_gateway(builtin_model, *INSTANT, *flags) as gateway:
            with self.client(gateway, its, with_certificate=True) as client:
                assert is_answered_over_tls(client)
            with self.client(gateway, its) as client:
                assert refusal(client.is_server_live) == "UNAVAILABLE"


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
        return wrapped.getpeercert(binary_form=True)


def first_certificate(path: Path) -> bytes:
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(path.read_text().partition(end)[0] + end)


class TestUnixSocket:
    def test_it_is_for_its_user_alone_and_goes_with_the_server(self, builtin_model, tmp_path):
        path = tmp_path / "socket"
        with running_server(builtin_model, *INSTANT, "--unix_socket", str(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                sock.sendall(frame(ASK))
                assert receive(sock)["answer"] == FIRST_WORD
        assert not path.exists()

    def test_our_clients_ask_by_its_path(self, builtin_model, tmp_path):
        path = str(tmp_path / "socket")

        async def ask():
            async with AsyncQaClient(path) as client:
                return await client.ask(ASK["question"], TEXT)

        with running_server(builtin_model, *INSTANT, "--unix_socket", path):
            with QaClient(path) as client:
                assert client.ask(ASK["question"], TEXT).answer == FIRST_WORD
            assert asyncio.run(ask()).answer == FIRST_WORD

    def test_what_a_killed_server_has_left_is_replaced(self, builtin_model, tmp_path):
        path = tmp_path / "socket"
        flags = ("--unix_socket", str(path))
        killed = RunningServer(builtin_model, *INSTANT, *flags)
        killed.close()
        assert path.is_socket()
        with running_server(builtin_model, *INSTANT, *flags):
            again = start(*flags)
            assert again.returncode == 2
            assert f"cannot listen on {path}" in again.stderr

    def test_a_gateway_of_its_own(self, builtin_model, tmp_path):
        """It waits for the server, and tells calls meanwhile that there is none."""
        path, port = tmp_path / "socket", reserve_port()
        command = [sys.executable, "-m", "qa_service.grpc_gateway.program", "--unix_socket",
                   str(path), "--port", str(port)]  # fmt: skip
        gateway = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            assert LISTENS in gateway.stderr.readline()
            with triton.InferenceServerClient(f"localhost:{port}") as client:
                assert not client.is_server_live()
                assert refusal(is_answered, client) == "UNAVAILABLE"
                for _ in range(2):
                    with running_server(
                        builtin_model, *INSTANT, "--no-http", "--unix_socket", str(path)
                    ):
                        assert client.is_server_ready()
                        assert is_answered(client)
            gateway.terminate()
            assert gateway.wait(GIVE_UP_S) == 0
        finally:
            gateway.kill()
            gateway.wait()
            gateway.stderr.close()
