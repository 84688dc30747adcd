"""The server's Unix socket: who may use it, what becomes of its file, a gateway that uses it."""

import asyncio
import stat
import sys

import pytest

from harness.frames import ASK, FIRST_WORD, TEXT
from harness.gateway import LISTENS, answers, inputs
from harness.process import GIVE_UP_S, LoggingProcess, reserve_port
from harness.server import INSTANT, ROOT, RunningServer, running_server
from qa_service.aio import AsyncQaClient
from qa_service.client import QaClient
from tests.programs import fail_to_start


def test_the_unix_socket_is_private_and_removed_at_the_end(builtin_model, tmp_path):
    path = tmp_path / "socket"

    async def ask():
        async with AsyncQaClient(str(path)) as client:
            return await client.ask(ASK["question"], TEXT)

    with running_server(builtin_model, *INSTANT, "--unix_socket", str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with QaClient(str(path)) as client:
            assert client.ask(ASK["question"], TEXT).answer == FIRST_WORD
        assert asyncio.run(ask()).answer == FIRST_WORD
    assert not path.exists()


def test_the_socket_file_of_a_killed_server_is_replaced(builtin_model, tmp_path):
    path = tmp_path / "socket"
    flags = (*INSTANT, "--unix_socket", str(path))
    killed = RunningServer(builtin_model, *flags)
    killed.close()
    assert path.is_socket()
    with running_server(builtin_model, *flags):
        assert f"cannot listen on {path}" in fail_to_start(*flags).stderr


def test_a_separate_gateway_waits_for_the_server_and_answers_unavailable_meanwhile(
    builtin_model, tmp_path
):
    """It waits for the server, and tells calls meanwhile that there is none."""
    triton = pytest.importorskip("tritonclient.grpc", reason="there is no tritonclient")
    path, port = str(tmp_path / "socket"), reserve_port()
    flags = ["--unix_socket", path, "--port", str(port)]
    command = [sys.executable, "-m", "qa_service.sidecars.grpc_gateway.program", *flags]
    gateway = LoggingProcess(command, cwd=ROOT)
    try:
        gateway.wait_for_log(LISTENS)
        with triton.InferenceServerClient(f"localhost:{port}") as client:
            assert not client.is_server_live()
            with pytest.raises(triton.InferenceServerException) as caught:
                client.infer("builtin", inputs(triton, ["Who?"]))
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            for _ in range(2):
                with running_server(builtin_model, *INSTANT, "--no-http", "--unix_socket", path):
                    assert client.is_server_ready()
                    found = client.infer("builtin", inputs(triton, ["Who?"]))
                    assert answers(found) == [FIRST_WORD]
        gateway.process.terminate()
        assert gateway.process.wait(GIVE_UP_S) == 0
    finally:
        gateway.close()
