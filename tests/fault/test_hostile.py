"""Clients that mean harm, or do it: each ends in an error or a close, and hurts nobody else."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from qa_service.client import QaClient
from tests.fault.faults import ANSWER, ASK
from tests.fault.frame_cost import LIMITS, MAX_FRAME_BYTES, cost_ms
from tests.fault.hostile_frames import HONEST, HOSTILE, OK
from tests.fault.process import MIB, num_descriptors, rss_bytes
from tests.running_server import running_server
from tests.support import frame, receive

LONGEST_SHORT_BODY = LIMITS.max_short_body_bytes
SIZES = (LONGEST_SHORT_BODY, 1 << 16, MAX_FRAME_BYTES)
RESET = b"\1\0\0\0\0\0\0\0"
NOISE = 2
MAX_GROWTH_BYTES = 8 * MIB
PATIENCE = ("--frame_timeout_ms", "400", "--idle_timeout_ms", "1200")


@pytest.fixture(scope="module")
def server(builtin_model):
    """One server for all of this, so that what one test leaves behind another may trip over."""
    with running_server(builtin_model) as running:
        yield running


@pytest.fixture
def neighbour(server):
    """Another client, connected all the while; nothing that happens may touch it."""
    with QaClient("localhost", server.port) as other:
        assert other.ask(ASK["question"], ASK["text"]).answer == ANSWER
        yield other
        assert other.ask(ASK["question"], ASK["text"]).answer == ANSWER


@pytest.fixture(scope="module")
def honest_ms():
    """By size, what the dearest honest frame costs the loop."""
    costs_ms = {
        size: max(cost_ms(make(size))[0] for make in HONEST.values())
        for size in (1 << 16, MAX_FRAME_BYTES)
    }
    return {LONGEST_SHORT_BODY: costs_ms[MAX_FRAME_BYTES], **costs_ms}


@pytest.mark.parametrize("size", SIZES, ids=["the longest short body", "64 KiB", "the largest"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_costs_the_loop_no_more_than_honest_ones(honest_ms, name, size):
    """`python -m benchmarks.frame_cost` prints the milliseconds, which are the machine's."""
    make, of_a_short_one, of_a_long_one = HOSTILE[name]
    body = make(size)
    took_ms, outcome = cost_ms(body)
    assert outcome == (of_a_short_one if len(body) <= LONGEST_SHORT_BODY else of_a_long_one)
    assert took_ms < NOISE * honest_ms[size]


@pytest.mark.parametrize("size", [28_000, 200_000])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_answered_and_the_connection_goes_on(server, neighbour, name, size):
    make, of_a_short_one, of_a_long_one = HOSTILE[name]
    expected = of_a_short_one if size <= LONGEST_SHORT_BODY else of_a_long_one
    with server.connect() as sock:
        sock.sendall(frame(make(size)))
        sock.sendall(frame({"id": "after", **ASK}))
        replies = [receive(sock), receive(sock)]
    codes = [reply["error"]["code"] for reply in replies if "error" in reply]
    assert codes == ([] if expected == OK else [expected])
    assert [r["answer"] for r in replies if r["id"] == "after"] == [ANSWER]


@pytest.mark.parametrize(
    "start",
    [
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x7fELF\x02\x01\x01",
    ],
    ids=["4 GB", "HTTP", "TLS", "SSH", "a program"],
)
def test_another_protocol_is_refused_on_its_first_four_bytes(server, neighbour, start):
    before = rss_bytes(server.process.pid)
    with server.connect() as sock:
        sock.sendall(start)
        assert receive(sock)["error"]["code"] == "frame_too_large"
        assert receive(sock) is None
    assert rss_bytes(server.process.pid) - before < MAX_GROWTH_BYTES


def test_a_hundred_thousand_deep_and_a_hundred_thousand_digits(server, neighbour, honest_ms):
    """The same as above at the very figures that are promised."""
    hundred_thousand = 100_000
    bodies = {
        "depth": b'{"more":' + b"[" * hundred_thousand + b"]" * hundred_thousand + b"}",
        "depth in an id": b'{"id":' + b"[" * hundred_thousand,
        "digits": b'{"id":1,"top_k":' + b"9" * hundred_thousand + b"}",
        "digits in an id": b'{"id":' + b"9" * hundred_thousand + b"}",
    }
    with server.connect() as sock:
        for name, body in bodies.items():
            took_ms, _ = cost_ms(body)
            assert took_ms < honest_ms[MAX_FRAME_BYTES], name
            sock.sendall(frame(body))
            assert receive(sock)["error"]["code"] in {"invalid_frame", "invalid_request"}


def test_connections_as_fast_as_they_come(server, neighbour):
    pid, duration_s, count = server.process.pid, 2.0, 0
    before = num_descriptors(pid)
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        server.connect().close()
        count += 1
        if count % 50 == 0:
            assert neighbour.ask(ASK["question"], ASK["text"]).answer == ANSWER
    print(f"\n{count / duration_s:.0f} connections a second")
    wait_for_descriptors(pid, before)


@pytest.mark.parametrize("data", [b"", b"\0\0", frame(ASK), frame(ASK)[:50], b"\0\0\0\1x" * 50])
def test_resets_at_any_moment(server, neighbour, data):
    pid = server.process.pid
    before = num_descriptors(pid)
    for _ in range(50):
        sock = server.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.sendall(data)
        sock.close()
    wait_for_descriptors(pid, before)


def test_memory_does_not_stay(server, neighbour):
    """Big frames of every kind, over connections that end in every way."""

    def all_kinds():
        for make, _, _ in HOSTILE.values():
            with server.connect() as sock:
                sock.sendall(frame(make(200_000)))
                receive(sock)
                sock.sendall(frame(make(200_000))[:150_000])

    def most_bytes(num_rounds):
        """The C library gives memory back now and then: what counts is how far it goes."""
        seen = []
        for _ in range(num_rounds):
            all_kinds()
            seen.append(rss_bytes(server.process.pid))
        return max(seen)

    before = most_bytes(5)
    after = most_bytes(5)
    print(f"\nRSS at most {before / MIB:.1f} MiB, then {after / MIB:.1f} MiB")
    assert after - before < MAX_GROWTH_BYTES


def wait_for_descriptors(pid: int, count: int) -> None:
    give_up_s = time.monotonic() + 10
    while num_descriptors(pid) > count:
        assert time.monotonic() < give_up_s, "descriptors stay open"
        time.sleep(0.01)  # the kernel tells nobody when another process closes


@pytest.fixture(scope="module")
def hasty_server(builtin_model):
    with running_server(builtin_model, *PATIENCE) as running:
        yield running


class TestPatience:
    """Clients that are slow, silent or gone."""

    def test_a_frame_that_comes_a_byte_at_a_time_has_its_time(self, hasty_server):
        with hasty_server.connect() as sock:
            started_s = time.monotonic()
            sock.settimeout(0.1)
            for byte in frame(ASK):
                sock.sendall(bytes([byte]))
                try:
                    first = sock.recv(1, socket.MSG_PEEK)
                    break
                except TimeoutError:
                    continue
            took_s = time.monotonic() - started_s
            sock.settimeout(20)
            assert first
            assert receive(sock)["error"]["code"] == "frame_timeout"
            assert receive(sock) is None
        assert 0.3 < took_s < 5

    def test_requests_before_a_frame_that_is_late_are_answered(self, hasty_server):
        with hasty_server.connect() as sock:
            sock.sendall(frame({"id": 1, **ASK}) + frame(ASK)[:7])
            replies = [receive(sock), receive(sock)]
            assert {reply["id"] for reply in replies} == {1, None}
            assert receive(sock) is None

    def test_a_silent_connection_is_closed(self, hasty_server):
        with hasty_server.connect() as sock:
            assert receive(sock) is None

    def test_a_connection_that_asks_now_and_then_stays(self, hasty_server):
        with hasty_server.connect() as sock:
            for i in range(4):
                time.sleep(0.4)  # it is the silence that is tested
                sock.sendall(frame({"id": i, **ASK}))
                assert receive(sock)["answer"] == ANSWER

    def test_a_client_that_never_reads_is_dropped(self, builtin_model):
        flags = ("--client_stall_timeout_ms", "300", "--max_output_buffer_bytes", "10000")
        with running_server(builtin_model, *flags) as server, server.connect() as sock:
            sock.settimeout(20)
            with pytest.raises(ConnectionError):
                while True:  # each costs an error, which fills first the kernel, then the buffer
                    sock.sendall(frame({"id": "x" * 200}) * 100)
            server.wait_for_log("does not read its answers")
            assert server.ask(**ASK)["answer"] == ANSWER

    def test_the_kernel_probes_for_clients_that_have_vanished(self, server):
        """In /proc/net/tcp the timer 02 is keepalive's; seen from the server's end."""
        with server.connect() as sock:
            assert server.ask(**ASK)["answer"] == ANSWER  # so that the first is accepted too
            ours = f":{sock.getsockname()[1]:04X}"
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            timers = [line[5][:2] for line in lines if line[2].endswith(ours)]
        assert timers == ["02"]


def test_a_request_within_a_stream_of_garbage_errors_is_in_its_place(server):
    """Bad bodies between good ones: each gets its own reply."""
    with server.connect() as sock:
        requests = [{"id": i, **ASK} if i % 3 == 0 else {"id": i, "text": 5} for i in range(30)]
        sock.sendall(b"".join(map(frame, requests)))
        replies = {reply["id"]: reply for reply in (receive(sock) for _ in requests)}
    assert [("answer" in replies[i]) for i in range(30)] == [i % 3 == 0 for i in range(30)]
    assert json.dumps(replies[1]["error"]).isascii()
