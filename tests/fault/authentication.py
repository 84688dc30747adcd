"""What the tests of TLS and tokens need to speak to a server."""

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.frames import ASK, FIRST_WORD, cut, frame, frames_in, receive
from harness.process import GIVE_UP_S
from harness.server import INSTANT, RunningServer
from tests.certificates import Certificates

TOKEN = "3bQ1xT0yqWcV7uKfJm2sZg"
EXPIRED = "Zt0xT0yqWcV7uKfJm2sZgA"
AUTH = {"type": "auth", "token": TOKEN}
AUTHENTICATED = {"id": None, "auth": "ok"}
SHORT_MS, LONG_MS = 1_000, 300_000
FEW = (*INSTANT, "--log_level", "info")


@contextmanager
def secured(server: RunningServer, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A connection that has shaken hands."""
    with (
        server.connect() as sock,
        context.wrap_socket(sock, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


def is_let_in(sock: socket.socket, token: str = TOKEN) -> bool:
    sock.sendall(frame({**AUTH, "token": token}))
    return receive(sock) == AUTHENTICATED


def is_served(sock: socket.socket) -> bool:
    sock.sendall(frame({"id": 1, **ASK}))
    return receive(sock)["answer"] == FIRST_WORD


def pipelined(sock: ssl.SSLSocket, data: bytes, num_replies: int) -> list[dict]:
    """Reads replies while it writes, in one thread: an SSL socket does not bear two."""
    again = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    sock.setblocking(False)
    unsent, inbox, replies = memoryview(data), bytearray(), []
    while len(replies) < num_replies:
        select.select([sock], [sock] if unsent else [], [], GIVE_UP_S)
        with suppress(*again):
            unsent = unsent[sock.send(unsent[: 1 << 14]) if unsent else 0 :]
        with suppress(*again):
            piece = sock.recv(1 << 16)
            assert piece, "the stream ended"
            inbox += piece
        replies += cut(inbox)
    return replies


def error_code(data: bytes) -> str:
    """The code of the one error frame that this is."""
    [reply] = frames_in(data)
    assert set(reply) == {"id", "error"}
    assert reply["id"] is None
    assert not reply["error"]["retryable"]
    return reply["error"]["code"]


def client_hello(certificates: Certificates) -> bytes:
    """The first bytes of a client that speaks TLS."""
    outgoing = ssl.MemoryBIO()
    context = certificates.client_context()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()
