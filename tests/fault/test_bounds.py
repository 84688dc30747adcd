"""What is bounded stays so: memory whatever clients do, and others' service while some are slow."""

import asyncio
import contextlib
import json
import socket

import pytest

from harness.disturbances import alone_and_in_crowd
from harness.frames import ASK, FIRST_WORD, frame, receive
from harness.load import QuietAnswers, assert_all_right, offer, report_of
from harness.memory import bound_bytes
from harness.process import MIB, rss_bytes
from harness.server import EXACT_ENGINE, RunningServer, running_server
from qa_service.options import MAX_MS
from qa_service.server.config import ServerConfig
from tests.fault.faults import marked

SMALL = {
    "num_inference_sessions": 1,
    "max_connections": 60,
    "max_queue_size": 200,
    "max_frame_bytes": 1 << 16,
    "max_output_buffer_bytes": 1 << 18,
    "request_timeout_ms": 0,  # so that requests are refused by their number, not by their work
}
SMALL_FLAGS = [word for name, bound in SMALL.items() for word in (f"--{name}", str(bound))]


@pytest.mark.soak
def test_500_slow_clients_and_one_that_never_reads_do_not_delay_honest_ones(builtin_model):
    """For the figures, `python -m benchmarks.fault slow_clients`: here others may be running."""
    with running_server(builtin_model, *EXACT_ENGINE) as server:
        crowd = alone_and_in_crowd(server, num_honest=10, num_slow=500, duration_s=3)
        quiet, crowded, num_cut_off = asyncio.run(crowd)
    print(f"\nalone\n{quiet}\nin the crowd\n{crowded}")
    assert num_cut_off == 0
    assert_all_right(quiet)
    assert_all_right(crowded)


@pytest.mark.soak
def test_load_of_three_times_the_capacity_is_refused_as_queue_full_and_throughput_holds(
    builtin_model,
):
    """The load generator needs a core too; for figures, `python -m benchmarks.fault overload`."""
    with running_server(builtin_model, *EXACT_ENGINE, "--max_queue_size", "20") as server:
        answers = QuietAnswers(server.port)
        per_s = report_of(answers.plan(16, duration_s=2)).throughput
        report, refused = offer(answers, 3 * per_s, duration_s=4, num_connections=20, seed=3)
    print(f"\nclosed loop: {per_s:.1f} answers/s\n{report}\nthe refused\n{refused}")
    assert set(report.errors) == {"queue_full"}
    assert report.throughput > per_s / 2
    assert refused.percentiles_ms[50] < report.percentiles_ms[50]


def test_memory_of_full_buffers_and_queue_stays_within_the_bound(faulty_server):
    """Every connection holds what it may, the queue is full, and the only instance hangs."""
    for_ever = ("--execution_timeout_ms", str(MAX_MS))
    with faulty_server(*SMALL_FLAGS, *for_ever) as server, contextlib.ExitStack() as open_sockets:
        pid = server.process.pid
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        idle = rss_bytes(pid)
        hanging = open_sockets.enter_context(server.connect())
        hanging.sendall(frame(marked("!!hang!!", "hung")))
        server.wait_for_queue(hanging)
        socks = [open_sockets.enter_context(server.connect()) for _ in range(50)]
        for number, sock in enumerate(socks):
            fill(server, sock, number)
        held = rss_bytes(pid) - idle
        bound = bound_bytes(ServerConfig.of(**SMALL))
        print(f"\nheld {held / MIB:.1f} MiB of at most {bound / MIB:.1f} MiB")
        assert bound / 3 < held < bound
        for sock in socks:
            sock.close()
        hanging.sendall(frame(b"still there?"))
        assert receive(hanging)["error"]["code"] == "invalid_frame"


def fill(server: RunningServer, sock: socket.socket, number: int) -> None:
    """Fills the queue, and the connection's own buffers: input of one, output of the next."""
    wide = {"question": "Who?", "text": "\U0001f600" + "a" * 60_000}
    body = json.dumps(wide, ensure_ascii=False).encode()
    sock.sendall(b"".join(frame(b'{"id":%d,' % i + body[1:]) for i in range(5)))
    if number % 2:
        sock.sendall(frame(body)[:-1])
    else:
        pour(server, sock, frame({"id": "x" * 200, "question": 5}) * 100)


def pour(server: RunningServer, sock: socket.socket, data: bytes) -> None:
    """Sends until the server takes no more of it, though it has had rounds of its loop for it."""
    sock.setblocking(False)
    rounds = 0
    while rounds < 5:
        try:
            sock.send(data)
            rounds = 0
        except BlockingIOError:
            server.ask(type="health")
            rounds += 1
