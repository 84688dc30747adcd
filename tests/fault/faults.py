"""Requests that make a worker of `faulty_server` misbehave, and the requests sent with them."""

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from harness.frames import ASK, FIRST_WORD, TEXT, frame, receive
from harness.process import held_still, wait_until
from harness.server import RunningServer

FAULTY_WORKER = Path(__file__).parent / "faulty_worker"

ONE_SESSION = ("--num_inference_sessions", "1", "--cost_table", "off")
"""An instance that takes together all that waits."""


def marked(marker: str, request_id: object) -> dict:
    return {"id": request_id, "question": f"{marker} {ASK['question']}", "text": TEXT}


def stopped(server: RunningServer) -> AbstractContextManager[None]:
    """Holds the server's instances still: what they run is not answered until they go on."""
    return held_still(server.worker_pids())


def fresh_worker(server: RunningServer, old: Sequence[int]) -> int:
    """Waits for a worker that is none of the old ones."""
    return wait_until(lambda: [pid for pid in server.worker_pids() if pid not in old])[0]


def send_one_batch(server: RunningServer, sock: socket.socket, *requests: dict) -> None:
    """Holds the only instance still first, so that what follows waits and leaves together."""
    with stopped(server):
        sock.sendall(frame({"id": "first", **ASK}))
        assert server.wait_for_queue(sock) == []
        sock.sendall(b"".join(map(frame, requests)))
        assert server.wait_for_queue(sock) == []
    assert receive(sock)["id"] == "first"


def error_among_neighbours(server: RunningServer, sock: socket.socket, marker: str) -> dict:
    """The error of a request in a batch with six that do not misbehave, and are answered."""
    neighbours = [{"id": i, **ASK} for i in range(6)]
    send_one_batch(server, sock, *neighbours[:3], marked(marker, "guilty"), *neighbours[3:])
    replies = replies_by_id(sock, 7)
    guilty = replies.pop("guilty")["error"]
    assert [reply["answer"] for reply in replies.values()] == [FIRST_WORD] * 6
    return guilty


def replies_by_id(sock: socket.socket, count: int) -> dict:
    replies = [receive(sock) for _ in range(count)]
    by_id = {reply["id"]: reply for reply in replies}
    assert len(by_id) == count
    return by_id


WORKER = "qa_service.instance.worker_main"


class Permits:
    """Without one, no worker of a server with this environment starts; each takes one.

    Args:
        program: The module of another program that waits in place of the workers.

    Attributes:
        env: What the server's environment has besides.
    """

    def __init__(self, folder: Path, number: int, program: str = WORKER) -> None:
        self._folder = folder / "permits"
        self._folder.mkdir()
        self._given = 0
        permits = f"{program}:{self._folder}"
        self.env = {"PYTHONPATH": str(FAULTY_WORKER), "QA_TEST_PERMITS": permits}
        self.give(number)

    def give(self, number: int = 1) -> None:
        for _ in range(number):
            self._given += 1
            (self._folder / str(self._given)).touch()
