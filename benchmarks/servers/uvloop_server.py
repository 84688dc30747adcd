"""asyncio on uvloop, over the server's frames, answering at once.

    python -m benchmarks.servers.uvloop_server --port 8000 --sessions 0

With no sessions, the loop itself answers: the minimum an asyncio server does. With some, each
question passes through one of as many worker processes over a socketpair, as the server's do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

import uvloop

from benchmarks.servers.reading import decode_framed, encode, instant_answer

PREFIX = struct.Struct(">I")
BACKLOG = 1024


def reply_to(body: bytes) -> bytes:
    question = decode_framed(body)
    return encode({"id": question.id, **instant_answer(question)})


class Framed(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        start = 0
        while len(buffer) - start >= PREFIX.size:
            end = start + PREFIX.size + PREFIX.unpack_from(buffer, start)[0]
            if len(buffer) < end:
                break
            self.frame_received(buffer[start + PREFIX.size : end])
            start = end
        self._buffer = buffer[start:]

    def send(self, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(PREFIX.pack(len(body)) + body)

    def frame_received(self, body: bytes) -> None:
        raise NotImplementedError


class Answering(Framed):
    def frame_received(self, body: bytes) -> None:
        self.send(reply_to(body))


class Session(Framed):
    def __init__(self, idle: Callable[[Session], None]) -> None:
        super().__init__()
        self._idle = idle
        self.client: Framed | None = None

    def frame_received(self, body: bytes) -> None:
        client, self.client = self.client, None
        if client:
            client.send(body)
        self._idle(self)


class Dispatcher:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Framed, bytes]] = deque()
        self._idle: deque[Session] = deque()

    def add(self, client: Framed, body: bytes) -> None:
        # Parsed and written again here too, as a server must that looks at what it passes on.
        self._waiting.append((client, encode(decode_framed(body))))
        self._dispatch()

    def idle(self, session: Session) -> None:
        self._idle.append(session)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._waiting and self._idle:
            session = self._idle.popleft()
            session.client, body = self._waiting.popleft()
            session.send(body)


class Asking(Framed):
    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()
        self._dispatcher = dispatcher

    def frame_received(self, body: bytes) -> None:
        self._dispatcher.add(self, body)


def answer_forever(sock: socket.socket) -> None:
    """What runs in a worker process."""
    while prefix := sock.recv(PREFIX.size, socket.MSG_WAITALL):
        body = sock.recv(PREFIX.unpack(prefix)[0], socket.MSG_WAITALL)
        reply = reply_to(body)
        sock.sendall(PREFIX.pack(len(reply)) + reply)


def fork_session() -> socket.socket:
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    answer_forever(theirs)
    os._exit(0)


async def serve(port: int, sockets: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher()
    for sock in sockets:
        _, session = await loop.create_connection(lambda: Session(dispatcher.idle), sock=sock)
        dispatcher.idle(session)
    protocol = (lambda: Asking(dispatcher)) if sockets else Answering
    server = await loop.create_server(protocol, "127.0.0.1", port, backlog=BACKLOG)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=0)
    flags = parser.parse_args()
    uvloop.run(serve(flags.port, [fork_session() for _ in range(flags.sessions)]))


if __name__ == "__main__":
    main()
