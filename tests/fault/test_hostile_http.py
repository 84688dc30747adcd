"""Hostile HTTP against a running server: one reply, the end of the connection, and no harm."""

import asyncio
import json
import re

import pytest

from harness.frames import ASK, everything, reset_at_close
from harness.hostile_http import MALFORMED, SMUGGLED, chunked, head
from harness.live_fuzz import fuzz_server_http
from harness.process import MIB, Growth, num_descriptors, rss_bytes, wait_until
from harness.server import INSTANT, running_server

MAX_BODY_BYTES = 100_000
BOUND = (*INSTANT, "--max_frame_bytes", str(MAX_BODY_BYTES))
STATUS_LINE = re.compile(rb"HTTP/1\.1 \d\d\d ")
SHORT = (*BOUND, "--client_timeout_ms", "400")
HASTY = (*BOUND, "--client_timeout_ms", "50", "--idle_timeout_ms", "3000")
NUM_REQUESTS = 10_000


@pytest.fixture(scope="module")
def server(builtin_model):
    with running_server(builtin_model, *BOUND) as running:
        yield running


@pytest.fixture(scope="module")
def hasty_server(builtin_model):
    with running_server(builtin_model, *SHORT) as running:
        yield running


@pytest.mark.parametrize("name", [n for n, (data, _) in MALFORMED.items() if data[:1].isalpha()])
def test_a_malformed_request_has_one_reply_and_is_the_last(server, neighbour, name):
    data, status = MALFORMED[name]
    with server.connect() as sock:
        sock.sendall(data + SMUGGLED)
        received = everything(sock)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert len(STATUS_LINE.findall(received)) == 1
    assert b"\r\nConnection: close\r\n" in received


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: ", head(b"Content-Length: 5\r\n") + b"123", chunked(b"3\r\nab")],
    ids=["head", "body", "chunks"],
)
def test_an_http_request_that_does_not_end_in_time_gets_408(hasty_server, data):
    with hasty_server.connect() as sock:
        sock.sendall(data)
        assert everything(sock).startswith(b"HTTP/1.1 408 ")


def test_a_client_receives_the_error_for_a_body_that_is_too_long(server, neighbour):
    with server.connect() as sock:
        sock.sendall(head(b"Content-Length: 3000000\r\n") + bytes(3_000_000))
        assert everything(sock).startswith(b"HTTP/1.1 413 ")


def test_a_bomb_inflates_to_the_limit_and_no_further(server, neighbour):
    import gzip

    bomb = gzip.compress(bytes(50 * MIB))
    before = rss_bytes(server.process.pid)
    with server.connect() as sock:
        fields = b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n" % len(
            bomb
        )
        sock.sendall(head(fields) + bomb)
        assert everything(sock).startswith(b"HTTP/1.1 413 ")
    assert rss_bytes(server.process.pid) - before < Growth.MAX_BYTES


def test_bytes_after_the_last_request_are_not_answered(server, neighbour):
    body = json.dumps(ASK).encode()
    data = head(b"Connection: close\r\nContent-Length: %d\r\n" % len(body)) + body
    with server.connect() as sock:
        sock.sendall(data + data + SMUGGLED)
        received = everything(sock)
    assert received.count(b"HTTP/1.1 200 OK") == received.count(b"HTTP/1.1 ") == 1


def num_accepted(server):
    stats = server.stats()
    return stats["counters"]["connections_accepted_total"]


def test_a_reset_connection_leaves_no_resources(server, neighbour):
    before, accepted = num_descriptors(server.process.pid), num_accepted(server)
    for _ in range(100):
        with server.connect() as sock:
            sock.sendall(head(b"Content-Length: 5\r\n") + b"12")
            reset_at_close(sock)
    wait_until(lambda: num_accepted(server), lambda count: count >= accepted + 100)
    wait_until(lambda: num_descriptors(server.process.pid), lambda count: count <= before)


def test_pipelined_requests_behind_a_slow_one_are_bounded(server, neighbour):
    body = json.dumps(ASK).encode()
    slow = head(b"Content-Length: %d\r\n" % len(body)) + body
    count = 2000
    with server.connect() as sock:
        sock.sendall(slow + head(line=b"GET /v2 HTTP/1.1") * count + head(b"Connection: close\r\n"))
        received = everything(sock)
    assert received.count(b"HTTP/1.1 200 OK") == count + 1


@pytest.mark.soak
def test_a_server_survives_mutated_http_requests(builtin_model):
    with running_server(builtin_model, *HASTY) as server:
        report, growth = asyncio.run(fuzz_server_http(server, NUM_REQUESTS, seed=31))
    print(f"\n{report}\n{growth}")
    assert report.num_silent == 0
    assert growth.is_small
