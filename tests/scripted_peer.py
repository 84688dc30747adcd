"""A server that does as a test tells it, over real sockets: the client's scripted peer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from harness.frames import PREFIX, frame
from harness.process import GIVE_UP_S
from qa_service.client import QaClient


def answer_to(request: dict[str, Any], answer: str = "", **fields: Any) -> dict[str, Any]:
    """The reply that finds `answer` (by default the text's first word) in the text.

    Asked for its models or its figures, it has none.
    """
    if request.get("type") == "stats":
        return {"id": request["id"], "stats": {}}
    if request.get("type") == "models":
        return {"id": request["id"], "models": []}
    answer = answer or request["text"].split()[0]
    start = request["text"].index(answer)
    reply = {"id": request["id"], "answer": answer, "score": 0.5}
    reply |= {"start": start, "end": start + len(answer), "timings_ms": {"queue": 0.1}}
    return reply | fields


def unknown_to(request: dict[str, Any]) -> dict[str, Any]:
    return {"id": request["id"], "answer": "", "score": 0.9, "start": None, "end": None}


def error_to(request_id: Any, code: str = "queue_full", **fields: Any) -> dict[str, Any]:
    error = {"code": code, "message": f"it is {code}", "retryable": True}
    return {"id": request_id, "error": error | fields}


def kept_connections(client: QaClient) -> list:
    """The connections that a client holds between two calls."""
    return [connection for server in client._servers._known.values() for connection in server.idle]


class PeerConnection:
    """One accepted connection, blocking, as a script uses it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def receive(self) -> dict[str, Any] | None:
        """The next request, or None when the client has closed."""
        header = self._exactly(PREFIX.size)
        body = header and self._exactly(PREFIX.unpack(header)[0])
        return json.loads(body) if body else None

    def send(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(map(frame, messages)))

    def _exactly(self, size: int) -> bytes | None:
        data = self.sock.recv(size, socket.MSG_WAITALL)
        return data if len(data) == size else None


Script = Callable[[PeerConnection], None]


def answer_all(peer: PeerConnection) -> None:
    while (request := peer.receive()) is not None:
        peer.send(answer_to(request))


def answer_and_keep(requests: list[dict[str, Any]]) -> Script:
    def script(peer: PeerConnection) -> None:
        while (request := peer.receive()) is not None:
            requests.append(request)
            peer.send(answer_to(request))

    return script


def answer_after(number: int, asked: list[tuple[PeerConnection, dict[str, Any]]]) -> Script:
    """Adds each request to `asked`, and answers them all when there are this many."""
    lock = threading.Lock()

    def script(peer: PeerConnection) -> None:
        while (request := peer.receive()) is not None:
            with lock:
                asked.append((peer, request))
                if len(asked) == number:
                    for each, its_request in asked:
                        each.send(answer_to(its_request))

    return script


def say_that_it_closes(peer: PeerConnection) -> None:
    """Answers one request, the last one, and expects no other."""
    request = peer.receive()
    assert request is not None
    peer.send(answer_to(request, closing=True))
    assert peer.receive() is None


def close_at_once(peer: PeerConnection) -> None:
    """Leaves the connection."""


class ScriptedPeer:
    """Serves each connection by its own script, in the order they are made; the last repeats.

    What goes wrong in a script is raised again when the `with` block ends.
    """

    def __init__(
        self,
        *scripts: Script,
        receive_buffer_bytes: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._scripts = scripts
        self._socket = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.bind((host, port))
        self._socket.listen()
        self.host, self.port = self._socket.getsockname()
        self.connections = 0
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> ScriptedPeer:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_listening()
        for thread in self._threads:
            thread.join(timeout=GIVE_UP_S)
            assert not thread.is_alive(), "a script still waits for something"
        if self._errors:
            raise self._errors[0]

    def stop_listening(self) -> None:
        """Refuses connections from now on; those there are go on."""
        with contextlib.suppress(OSError):
            # Wakes the accepting thread, as a close alone would not.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._run, args=(script, sock), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Script, sock: socket.socket) -> None:
        with sock:
            try:
                script(PeerConnection(sock))
            except ConnectionError:
                pass  # The client has gone, as in some tests it shall.
            except BaseException as error:
                self._errors.append(error)
