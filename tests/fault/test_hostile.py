"""Clients that mean harm, or do it: each ends in an error or a close, and hurts nobody else."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.frames import ASK, FIRST_WORD, frame, receive, reset_at_close
from harness.hostile_frames import HOSTILE, OK
from harness.process import GIVE_UP_S, MIB, Growth, num_descriptors, rss_bytes, wait_until
from harness.server import INSTANT, RunningServer, running_server
from qa_service.client import QaClient
from qa_service.wire.messages import RequestLimits

SIZES = (1 << 14, 1 << 16, RequestLimits().max_frame_bytes)


@pytest.fixture(scope="module")
def server(builtin_model):
    """One server for all of this, so that what one test leaves behind another may trip over."""
    with running_server(builtin_model, *INSTANT) as running:
        yield running


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_answered_and_the_connection_goes_on(server, neighbour, name, size):
    make, expected = HOSTILE[name]
    with server.connect() as sock:
        sock.sendall(frame(make(size)))
        sock.sendall(frame({"id": "after", **ASK}))
        replies = [receive(sock), receive(sock)]
    codes = [reply["error"]["code"] for reply in replies if "error" in reply]
    assert codes == ([] if expected == OK else [expected])
    assert [r["answer"] for r in replies if r["id"] == "after"] == [FIRST_WORD]


@pytest.mark.parametrize(
    "start",
    [b"\xff\xff\xff\xff", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x7fELF\x02\x01\x01"],
    ids=["4 GB", "TLS", "a program"],
)
def test_another_protocol_is_refused_on_its_first_four_bytes(server, neighbour, start):
    before = rss_bytes(server.process.pid)
    with server.connect() as sock:
        sock.sendall(start)
        assert receive(sock)["error"]["code"] == "frame_too_large"
        assert receive(sock) is None
    assert rss_bytes(server.process.pid) - before < Growth.MAX_BYTES


def test_2000_connections_in_a_row_leave_nothing_behind(server, neighbour):
    with leaving_nothing(server, neighbour, 2000):
        for count in range(2000):
            server.connect().close()
            if count % 50 == 0:
                assert neighbour.ask(ASK["question"], ASK["text"]).answer == FIRST_WORD


@pytest.mark.parametrize("data", [b"", b"\0\0", frame(ASK), frame(ASK)[:50], b"\0\0\0\1x" * 50])
def test_resets_leave_nothing_behind(server, neighbour, data):
    with leaving_nothing(server, neighbour, 50):
        for _ in range(50):
            sock = server.connect()
            reset_at_close(sock)
            sock.sendall(data)
            sock.close()


def test_hostile_frames_do_not_grow_memory(server, neighbour):
    """Big frames of every kind, over connections that end in every way."""

    def all_kinds():
        for make, _ in HOSTILE.values():
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
    assert after - before < Growth.MAX_BYTES


@contextmanager
def leaving_nothing(server: RunningServer, neighbour: QaClient, num_connections: int):
    """Waits until the server has had this many connections, and has but those left from before."""

    def count() -> tuple[int, int, int]:
        stats = neighbour.stats()
        accepted = stats["counters"]["connections_accepted_total"]
        open_now = stats["gauges"]["connections_open"]
        return accepted, open_now, num_descriptors(server.process.pid)

    accepted, open_now, descriptors = count()
    yield
    due = (accepted + num_connections, open_now, descriptors)
    wait_until(count, lambda counted: counted == due)


class TestTimeouts:
    """Clients that are slow, silent or gone."""

    def test_a_silent_connection_is_closed(self, builtin_model):
        flags = (*INSTANT, "--idle_timeout_ms", "1200")
        with running_server(builtin_model, *flags) as server, server.connect() as sock:
            assert receive(sock) is None

    def test_a_client_that_never_reads_is_dropped(self, builtin_model):
        flags = ("--client_timeout_ms", "300", "--max_output_buffer_bytes", "10000")
        with running_server(builtin_model, *INSTANT, *flags) as server, server.connect() as sock:
            sock.settimeout(GIVE_UP_S)
            with pytest.raises(ConnectionError):
                while True:  # each costs an error, which fills first the kernel, then the buffer
                    sock.sendall(frame({"id": "x" * 200}) * 100)
            server.wait_for_log("does not read its answers")
            assert server.ask(**ASK)["answer"] == FIRST_WORD

    def test_the_kernel_probes_for_clients_that_have_vanished(self, server):
        """In /proc/net/tcp the timer 02 is keepalive's; seen from the server's end."""
        with server.connect() as sock:
            assert server.ask(**ASK)["answer"] == FIRST_WORD  # so that the first is accepted too
            ports = [f":{port:04X}" for port in (server.port, sock.getsockname()[1])]
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            ends = [[end[-5:] for end in line[1:3]] for line in lines]
            timers = [line[5][:2] for line, end in zip(lines, ends, strict=True) if end == ports]
        assert timers == ["02"]
