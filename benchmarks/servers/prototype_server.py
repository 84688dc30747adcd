"""The prototype's design: a thread a connection, one queue, a thread a session, no batches.

    python -m benchmarks.servers.prototype_server --port 8000

Written from its description, over the frames of the server: the prototype itself took one
`recv(1024)` for a message, which would not carry these texts.
"""

from __future__ import annotations

import argparse
import queue
import socketserver
import struct
import threading
from typing import Any

from benchmarks.servers.reading import answers, decode_framed, encode, warm_reader
from qa_service.wire.messages import Question

PREFIX = struct.Struct(">I")
Waiting = tuple[Question, queue.SimpleQueue]


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    disable_nagle_algorithm = True
    request_queue_size = 128
    waiting: queue.Queue[Waiting]


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        while prefix := self.rfile.read(PREFIX.size):
            body = self.rfile.read(PREFIX.unpack(prefix)[0])
            question = decode_framed(body)
            self.server.waiting.put((question, replies))
            reply = encode({"id": question.id, **replies.get()})
            self.wfile.write(PREFIX.pack(len(reply)) + reply)


def serve_session(waiting: queue.Queue[Waiting]) -> None:
    """A session: takes the next question, whoever asked it."""
    reader = warm_reader()
    while True:
        question, replies = waiting.get()
        replies.put(answers(reader, [question])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=2)
    flags = parser.parse_args()
    with Server(("127.0.0.1", flags.port), Handler) as server:
        server.waiting = queue.Queue()
        for _ in range(flags.sessions):
            threading.Thread(target=serve_session, args=(server.waiting,), daemon=True).start()
        server.serve_forever()


if __name__ == "__main__":
    main()
