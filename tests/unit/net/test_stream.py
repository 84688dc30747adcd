"""A stream over a real socket pair: partial writes, backpressure, ends of every kind."""

import socket

import pytest

from qa_service.net.stream import READ_BYTES, Stream
from tests.support import run_until

BIG = bytes(range(256)) * 40_000


class Peer:
    def __init__(self, loop):
        self.loop = loop
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(20)
        self.data = bytearray()
        self.ends = 0
        self.flushes = 0
        self.stream = Stream(self.loop, ours)
        self.stream.start(self.take, self.end, self.flushed)

    def take(self, data):
        assert len(data) <= READ_BYTES
        self.data += data

    def end(self):
        self.ends += 1

    def flushed(self):
        self.flushes += 1

    def run_until(self, condition):
        run_until(self.loop, condition)


@pytest.fixture
def peer(loop):
    made = Peer(loop)
    yield made
    made.stream.close()
    made.sock.close()


def test_bytes_are_received_as_sent(peer):
    peer.sock.setblocking(False)
    sent = peer.sock.send(BIG)
    peer.run_until(lambda: len(peer.data) == sent)
    assert peer.data == BIG[:sent]


def test_bytes_over_the_socket_buffer_are_sent_later(peer):
    got = bytearray()

    def drain() -> bool:
        got.extend(peer.sock.recv(1 << 20))
        return len(got) == len(BIG)

    peer.stream.write(BIG)
    assert 0 < peer.stream.output_bytes < len(BIG)
    assert peer.stream.waiting_since_s is not None
    peer.run_until(drain)
    assert got == BIG
    assert (peer.stream.output_bytes, peer.flushes) == (0, 1)
    assert peer.stream.waiting_since_s is None


def test_bytes_written_behind_waiting_ones_are_sent_after_them(peer):
    peer.stream.write(BIG)
    got = bytearray(peer.sock.recv(1 << 20))  # now the kernel has room, and nothing is sent yet
    peer.stream.write(b"last")

    def drain() -> bool:
        got.extend(peer.sock.recv(1 << 20))
        return len(got) == len(BIG) + 4

    peer.run_until(drain)
    assert got == BIG + b"last"


def test_a_write_that_fits_at_once_is_not_reported_as_flushed(peer):
    peer.stream.write(b"abc")
    assert (peer.stream.output_bytes, peer.stream.waiting_since_s) == (0, None)
    assert peer.sock.recv(10) == b"abc"
    peer.run_until(lambda: True)
    assert peer.flushes == 0


def test_what_is_written_soon_in_a_round_is_sent_at_once_at_its_end(peer):
    peer.stream.write_soon(b"abc")
    peer.stream.write_soon(b"def")
    peer.stream.write(b"ghi")
    assert peer.stream.output_bytes == 9
    assert peer.stream.waiting_since_s is not None
    peer.run_until(lambda: not peer.stream.output_bytes)
    assert peer.stream.waiting_since_s is None
    assert peer.sock.recv(10) == b"abcdefghi"


@pytest.mark.parametrize("end", ["close", "close_gently"])
def test_a_stream_may_be_closed_before_the_end_of_the_round(peer, end):
    peer.stream.write_soon(b"abc")
    getattr(peer.stream, end)()
    peer.run_until(lambda: True)
    assert peer.sock.recv(10) == (b"" if end == "close" else b"abc")
    assert peer.ends == 0


def test_not_reading_leaves_the_bytes_with_the_sender(peer):
    peer.stream.set_reading(False)
    peer.sock.send(b"abc")
    peer.run_until(lambda: True)
    assert peer.data == b""
    peer.stream.set_reading(True)
    peer.run_until(lambda: bool(peer.data))
    assert peer.data == b"abc"


def test_the_peers_end_is_reported_once(peer):
    peer.sock.close()
    peer.run_until(lambda: peer.ends == 1)
    peer.stream.write(b"ignored")
    peer.stream.close()
    assert (peer.ends, peer.stream.is_open) == (1, False)


def test_a_write_to_a_broken_stream_ends_it(peer):
    peer.sock.close()
    peer.stream.write(b"abc")
    assert (peer.ends, peer.stream.is_open) == (1, False)
    peer.stream.write(b"abc")
    assert peer.ends == 1


def test_own_close_is_not_reported(peer):
    peer.stream.close()
    assert peer.sock.recv(1) == b""
    assert peer.ends == 0


def test_gentle_close_sends_the_rest_first_and_discards_what_comes(peer):
    got = bytearray()

    def drain() -> bool:
        peer.sock.setblocking(False)
        try:
            got.extend(data := peer.sock.recv(1 << 20))
        except BlockingIOError:
            return False
        return data == b""

    peer.stream.write(BIG)
    peer.sock.send(b"never read by anyone")
    peer.stream.close_gently()
    peer.stream.write(b"too late")
    peer.run_until(drain)
    assert got == BIG
    assert peer.data == b""
    peer.sock.close()
    peer.run_until(lambda: peer.ends == 1)


def test_gentle_close_does_not_wait_for_ever(peer):
    peer.stream.write(b"last words")
    peer.stream.close_gently()
    peer.run_until(lambda: peer.ends == 1)
    assert peer.sock.recv(100) == b"last words"
    assert peer.sock.recv(100) == b""


def test_a_fault_in_handling_data_ends_that_stream_alone(peer, caplog):
    peer.take = None
    peer.stream._on_data = lambda data: 1 / 0
    peer.sock.send(b"x")
    peer.run_until(lambda: peer.ends == 1)
    assert "ZeroDivisionError" in caplog.text
