"""Requests that make a worker of `faulty_server` misbehave, and those beside them."""

from __future__ import annotations

import socket

from harness.frames import frame, receive
from harness.questions import ASK, TEXT
from harness.server import RunningServer

ONE_SESSION = ("--num_inference_sessions", "1", "--cost_table", "off")
"""An instance that takes together all that waits."""


def marked(marker: str, request_id: object) -> dict:
    return {"id": request_id, "question": f"{marker} {ASK['question']}", "text": TEXT}


def send_one_batch(sock: socket.socket, *requests: dict) -> None:
    """Keeps the only instance busy first, so that what follows waits and leaves together."""
    sock.sendall(frame(marked("!!slow!!", "first")))
    RunningServer.wait_for_queue(sock)
    sock.sendall(b"".join(map(frame, requests)))
    assert receive(sock)["id"] == "first"


def replies_by_id(sock: socket.socket, count: int) -> dict:
    replies = [receive(sock) for _ in range(count)]
    by_id = {reply["id"]: reply for reply in replies}
    assert len(by_id) == count
    return by_id
