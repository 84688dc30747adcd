"""What is bounded stays so: memory whatever clients do, and others' service beside the slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

from qa_service.config import ServerConfig
from tests.fault.crowd import beside_a_crowd
from tests.fault.faults import ANSWER, ASK, marked
from tests.fault.load import ask_quietly
from tests.fault.memory import bound_bytes
from tests.fault.open_loop import HEADER, capacity_per_s, offer
from tests.fault.process import MIB, rss_bytes
from tests.running_server import running_server
from tests.support import frame, receive

SMALL = ServerConfig(
    num_inference_sessions=1,
    max_connections=60,
    max_queue_size=200,
    max_frame_bytes=1 << 16,
    max_output_buffer_bytes=1 << 18,
)


def flags_of(config: ServerConfig, *names: str) -> list[str]:
    return [word for name in names for word in (f"--{name}", str(getattr(config, name)))]


def test_honest_clients_beside_five_hundred_slow_ones_and_one_that_never_reads(builtin_model):
    """For the figures, `python -m benchmarks.slow_clients`: here others may be running."""
    with running_server(builtin_model) as server:
        report = asyncio.run(beside_a_crowd(server, num_honest=10, num_slow=500, duration_s=3))
    print(f"\n{report}")
    assert report.num_cut_off == 0
    report.quiet.assert_all_right()
    report.crowded.assert_all_right()


def test_three_times_what_the_server_can_do(builtin_model):
    """For the figures, `python -m benchmarks.overload`; the load generator needs a core too."""

    async def overload(port):
        questions = ask_quietly(port)
        capacity = await capacity_per_s(port, questions, duration_s=2)
        rate_per_s = 3 * capacity
        return capacity, await offer(
            port, questions, rate_per_s=rate_per_s, duration_s=4, num_connections=20, seed=3
        )

    with running_server(builtin_model, "--max_queue_size", "20") as server:
        capacity, report = asyncio.run(overload(server.port))
    print(f"\nclosed loop: {capacity:.1f} answers/s\n{HEADER}\n{report}")
    tally = report.tally
    assert set(tally.errors) == {"queue_full"}
    assert tally.right + tally.errors["queue_full"] == tally.sent
    assert not tally.doubled
    assert report.goodput_per_s > capacity / 2
    assert tally.error_p_ms(50) < tally.p_ms(50)


def test_a_full_queue_says_when_to_try_again(builtin_model):
    flags = ("--max_queue_size", "2", "--num_inference_sessions", "1", "--max_batch_size", "1")
    with running_server(builtin_model, *flags) as server, server.connect() as sock:
        sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(10)))
        errors = [
            reply["error"] for reply in (receive(sock) for _ in range(10)) if "error" in reply
        ]
    assert errors
    assert all(error["retryable"] and error["retry_after_ms"] > 0 for error in errors)


def test_memory_stays_within_its_bound(faulty_server):
    """Every connection holds what it may, the queue is full, and the only session hangs."""
    flags = flags_of(
        SMALL,
        "num_inference_sessions",
        "max_connections",
        "max_queue_size",
        "max_frame_bytes",
        "max_output_buffer_bytes",
    )
    with faulty_server(*flags) as server, contextlib.ExitStack() as open_sockets:
        pid = server.process.pid
        assert server.ask(**ASK)["answer"] == ANSWER
        idle = rss_bytes(pid)
        hanging = open_sockets.enter_context(server.connect())
        hanging.sendall(frame(marked("!!hang!!", "hung")))
        server.wait_for_queue(hanging)
        socks = [open_sockets.enter_context(server.connect()) for _ in range(50)]
        for number, sock in enumerate(socks):
            fill(sock, number)
        held = rss_bytes(pid) - idle
        bound = bound_bytes(SMALL)
        print(f"\nheld {held / MIB:.1f} MiB of at most {bound / MIB:.1f} MiB")
        assert bound / 3 < held < bound
        for sock in socks:
            sock.close()
        hanging.sendall(frame(b"still there?"))
        assert receive(hanging)["error"]["code"] == "invalid_frame"


def fill(sock: socket.socket, number: int) -> None:
    """Fills the queue, and the connection's own buffers: input of one, output of the next."""
    wide = {"question": "Who?", "text": "\U0001f600" + "a" * 60_000}
    body = json.dumps(wide, ensure_ascii=False).encode()
    sock.sendall(b"".join(frame(b'{"id":%d,' % i + body[1:]) for i in range(5)))
    if number % 2:
        sock.sendall(frame(body)[:-1])
    else:
        pour(sock, frame({"id": "x" * 200, "question": 5}) * 100)


def pour(sock: socket.socket, data: bytes) -> None:
    """Sends until the server takes no more of it for a while."""
    sock.settimeout(0.1)
    with contextlib.suppress(TimeoutError):
        while True:
            sock.sendall(data)
