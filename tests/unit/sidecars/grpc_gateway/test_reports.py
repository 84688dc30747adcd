"""Reports of the server over its Unix socket: when it counts as hanging, and when it closes."""

import asyncio

import pytest

from qa_service.errors import UnavailableError
from qa_service.sidecars.grpc_gateway import reports
from qa_service.sidecars.grpc_gateway.reports import MAX_CONNECTIONS, Reports

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NUM_ASKED = 10 * MAX_CONNECTIONS


@pytest.fixture
def ask_all(tmp_path, monkeypatch):
    """Asks a server that is slow by so many seconds; returns what each question got."""
    monkeypatch.setattr(reports, "TIMEOUT_S", 0.4)
    monkeypatch.setattr(reports, "TICK_S", 0.2)
    path = tmp_path / "socket"

    async def probe(slow_s):
        async def serve(reader, writer):
            while await reader.readline():
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(slow_s)
                writer.write(READY)

        server = await asyncio.start_unix_server(serve, path)
        asking = Reports(path)
        asked = (asking.probe("/v2/health/ready", "") for _ in range(NUM_ASKED))
        async with asyncio.timeout(NUM_ASKED * 0.4 / MAX_CONNECTIONS):
            found = await asyncio.gather(*asked, return_exceptions=True)
        server.close()
        return found

    return lambda slow_s: asyncio.run(probe(slow_s))


def test_a_question_that_waits_for_others_does_not_find_that_the_server_hangs(ask_all):
    assert ask_all(0.1) == [True] * NUM_ASKED


def test_those_behind_one_that_found_it_hanging_do_not_wait_again(ask_all):
    found = ask_all(60.0)
    assert {type(one) for one in found} == {UnavailableError}


def test_a_server_that_is_away_is_logged_once_and_so_is_its_return(tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "socket"

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(READY)

    async def run():
        asking = Reports(path)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await asking.probe("/v2/health/live", "")
        async with await asyncio.start_unix_server(serve, path):
            assert await asking.probe("/v2/health/live", "")

    asyncio.run(run())
    away = f"no server answers at {path}: [Errno 2] No such file or directory"
    assert caplog.messages == [away, f"a server answers at {path}"]


@pytest.mark.parametrize("last_words", [b"", READY.replace(b"200 OK", b"408 Timeout")])
def test_a_connection_that_the_server_ends_is_closed_and_not_used_again(tmp_path, last_words):
    """A server that closes waits for its peer; a drain would wait for the gateway."""

    async def run():
        ended = asyncio.Event()

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(READY + last_words)
            writer.write_eof()
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_unix_server(serve, tmp_path / "socket")
        asking = Reports(tmp_path / "socket")
        async with asyncio.timeout(5.0):
            for _ in range(2):
                assert await asking.probe("/v2/health/ready", "")
                await ended.wait()
                ended.clear()
        server.close()

    asyncio.run(run())
