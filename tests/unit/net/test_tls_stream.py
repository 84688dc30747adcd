"""A TLS stream over a real socket pair, its client driven by hand, all in one thread."""

import socket
import ssl
from contextlib import suppress
from functools import partial

import pytest

from qa_service.net.stream import READ_BYTES
from qa_service.net.tls import (
    RECORD_BYTES,
    STEPS_A_ROUND,
    HandshakeQueue,
    TlsStream,
    TlsTerms,
    server_context,
)
from qa_service.server.front.protocols import reply_without_tls
from tests.support import run_until

BIG = bytes(range(256)) * 40_000


class Peer:
    def __init__(self, certificates, loop, queue=None, *, handshake_timeout_s=20.0):
        self.loop = loop
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.data = bytearray()
        self.ends = 0
        self.flushes = 0
        terms = TlsTerms(
            context=server_context(certificates.cert, certificates.key, None),
            queue=queue or HandshakeQueue(self.loop),
            handshake_timeout_s=handshake_timeout_s,
            plain_reply=reply_without_tls,
        )
        self.stream = TlsStream(self.loop, ours, "a client", terms)
        self.stream.start(self.take, self.end, self.flushed)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = certificates.client_context().wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        self.unsent = b""
        self.is_shaken = False
        self.got = bytearray()
        self.has_goodbye = False

    def take(self, data):
        assert len(data) <= READ_BYTES + RECORD_BYTES
        self.data += data

    def end(self):
        self.ends += 1

    def flushed(self):
        self.flushes += 1

    def carry(self, *, reading=True):
        """Moves what can be moved between the client and the stream."""
        self.unsent += self.outgoing.read()
        with suppress(BlockingIOError, BrokenPipeError):
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        if reading:
            with suppress(BlockingIOError, ConnectionResetError):
                self.incoming.write(self.sock.recv(1 << 20))

    def step(self):
        """One turn of the client: shake hands, then read all there is."""
        self.carry()
        with suppress(ssl.SSLWantReadError):
            self.client.do_handshake()
            self.is_shaken = True
            while piece := self.client.read(1 << 16):
                self.got += piece
            self.has_goodbye = True

    def run_until(self, condition, step=None):
        def check():
            (step or self.step)()
            return condition()

        run_until(self.loop, check)

    def shake_hands(self):
        self.run_until(lambda: self.is_shaken and self.stream._state.name == "OPEN")

    def send(self, data):
        while data:
            data = data[self.client.write(data) :]


@pytest.fixture
def make_peer(certificates, loop):
    made = []

    def make(*arguments, **options):
        made.append(Peer(certificates, loop, *arguments, **options))
        return made[-1]

    yield make
    for peer in made:
        peer.stream.close()
        peer.sock.close()


def test_bytes_are_sent_and_received_at_the_same_time(make_peer):
    peer = make_peer()
    peer.shake_hands()
    peer.send(BIG)
    peer.stream.write(BIG)
    assert peer.stream.output_bytes > 0
    peer.run_until(lambda: len(peer.data) == len(peer.got) == len(BIG))
    assert peer.data == peer.got == BIG
    assert (peer.stream.output_bytes, peer.flushes) == (0, 1)
    assert peer.stream.waiting_since_s is None


def test_what_is_written_soon_is_sent_at_the_end_of_the_round(make_peer):
    peer = make_peer()
    peer.shake_hands()
    peer.stream.write_soon(b"abc")
    peer.stream.write_soon(b"def")
    assert peer.stream.output_bytes > 0
    peer.run_until(lambda: len(peer.got) == 6)
    assert (peer.got, peer.stream.output_bytes) == (b"abcdef", 0)


def test_data_sent_with_the_end_of_the_handshake_is_read(make_peer):
    peer = make_peer()
    sent = []

    def step():
        peer.step()
        if peer.is_shaken and not sent:
            sent.append(peer.send(b"first words"))

    peer.run_until(lambda: peer.data == b"first words", step)


def test_not_reading_leaves_the_bytes_with_the_sender(make_peer):
    peer = make_peer()
    peer.shake_hands()
    peer.stream.set_reading(False)
    peer.send(b"abc")
    peer.step()
    peer.run_until(lambda: True)
    assert peer.data == b""
    peer.stream.set_reading(True)
    peer.run_until(lambda: peer.data == b"abc")


def test_nothing_is_written_before_the_handshake(make_peer):
    peer = make_peer()
    peer.stream.write(b"too early")
    peer.shake_hands()
    peer.stream.write(b"in time")
    peer.run_until(lambda: peer.got == b"in time")


def test_gentle_close_sends_the_rest_and_close_notify(make_peer):
    peer = make_peer()
    peer.shake_hands()
    peer.stream.write(BIG)
    peer.stream.close_gently()
    peer.stream.write(b"too late")
    peer.run_until(lambda: peer.has_goodbye)
    assert peer.got == BIG
    peer.sock.close()
    peer.run_until(lambda: peer.ends == 1, step=lambda: None)


def test_gentle_close_in_a_handshake(make_peer):
    peer = make_peer()
    peer.step()
    peer.stream.close_gently()
    peer.run_until(lambda: peer.ends == 1, step=lambda: None)


@pytest.mark.parametrize("politely", [True, False])
def test_the_peers_end_is_reported_once(make_peer, politely):
    peer = make_peer()
    peer.shake_hands()
    peer.send(b"last words")
    if politely:
        with suppress(ssl.SSLWantReadError):
            peer.client.unwrap()
    peer.carry()
    if not politely:
        peer.sock.close()
    peer.run_until(lambda: peer.ends == 1, step=lambda: None)
    assert peer.data == b"last words"
    assert not peer.stream.is_open
    peer.stream.write(b"ignored")


def test_a_closed_stream_frees_its_tls_session_at_once(make_peer):
    """Not when Python looks for cycles: a thousand connects a second would pile up till then."""
    for end in ("close", "peer"):
        peer = make_peer()
        peer.shake_hands()
        session = peer.stream._session
        if end == "close":
            peer.stream.close()
        else:
            peer.sock.close()
            peer.run_until(lambda peer=peer: peer.ends == 1, step=lambda: None)
        assert not hasattr(session, "_ssl")
        peer.stream.close()
        peer.stream.close_gently()
        peer.stream.write(b"ignored")


def test_a_fault_in_handling_data_ends_that_stream_alone(make_peer, caplog):
    peer = make_peer()
    peer.shake_hands()
    peer.stream._on_data = lambda data: 1 / 0
    peer.send(b"x")
    peer.run_until(lambda: peer.ends == 1)
    assert "ZeroDivisionError" in caplog.text


def test_handshakes_take_turns(loop):
    """A round takes a few steps; the rest wait, and none is forgotten."""
    queue = HandshakeQueue(loop)
    taken, a_round = [], []
    for number in range(10):
        queue.add(partial(taken.append, number))
    loop.after_each = lambda: (a_round.append(len(taken)), loop.stop())
    while len(taken) < 10:
        loop.run()
    assert taken == list(range(10))
    assert a_round[0] == STEPS_A_ROUND


def test_a_fault_in_one_turn_does_not_stop_the_others(loop, caplog):
    queue = HandshakeQueue(loop)
    taken = []
    queue.add(lambda: 1 / 0)
    queue.add(lambda: taken.append(1))
    run_until(loop, lambda: bool(taken))
    assert "ZeroDivisionError" in caplog.text


def test_a_peer_that_does_not_read_is_not_read_from_endlessly(make_peer):
    """Every key update asks TLS for one of its own, which the peer leaves lying."""
    peer = make_peer()
    peer.shake_hands()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    peer.stream.write(BIG)
    peer.carry(reading=False)
    waiting = peer.stream.output_bytes
    peer.stream._session.write(b"what a key update asks for")
    peer.send(b"asks")
    peer.carry(reading=False)
    peer.run_until(lambda: peer.data == b"asks", step=lambda: None)
    assert peer.stream._is_unread
    assert peer.stream.output_bytes < waiting + 1000
    peer.send(b" more")
    peer.run_until(lambda: bool(peer.flushes) and peer.data == b"asks more")
    assert not peer.stream._is_unread
