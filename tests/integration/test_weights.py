"""Weights over real sockets, with batches; counts of answers while both clients have some due."""

from __future__ import annotations

import selectors
import socket
from collections import Counter

import pytest

from harness.frames import frame, receive
from harness.process import GIVE_UP_S
from harness.questions import ASK
from harness.server import running_server
from tests.programs import token_flags

TOKENS = ("token-of-the-heavy-one name=heavy weight=8", "token-of-the-light-one name=light")
IN_FLIGHT = 60
WARM_UP, COUNTED = 200, 500


class Asker:
    """A client with a token that always has so many questions in flight."""

    def __init__(self, sock: socket.socket, name: str, priority: int) -> None:
        self.sock, self.name, self.priority, self.next_id = sock, name, priority, 0
        sock.sendall(frame({"type": "auth", "token": f"token-of-the-{name}-one"}))
        assert receive(sock)["auth"] == "ok"

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.next_id += 1
            self.sock.sendall(frame({"id": self.next_id, "priority": self.priority, **ASK}))


@pytest.fixture(scope="module")
def server(builtin_model, tmp_path_factory):
    tokens = token_flags(tmp_path_factory.mktemp("tokens"), *TOKENS)
    with running_server(builtin_model, *tokens, "--num_inference_sessions", "2") as running:
        yield running


@pytest.mark.parametrize(
    ("priorities", "ratio"), [((0, 0), 8), ((0, 7), 1), ((4, 9), 4)], ids=["8:1", "8:8", "40:10"]
)
def test_two_clients_with_sixty_in_flight_get_by_weight_and_priority(server, priorities, ratio):
    answered = Counter()
    with (
        server.connect() as heavy,
        server.connect() as light,
        selectors.DefaultSelector() as selector,
    ):
        askers = Asker(heavy, "heavy", priorities[0]), Asker(light, "light", priorities[1])
        for asker in askers:
            selector.register(asker.sock, selectors.EVENT_READ, asker)
            asker.ask(IN_FLIGHT)
        for number in range(WARM_UP + COUNTED):
            (key, _), *_ = ready = selector.select(GIVE_UP_S)
            key = ready[number % len(ready)][0]
            assert "answer" in receive(key.data.sock)
            key.data.ask()
            answered[key.data.name] += number >= WARM_UP
    assert answered["heavy"] / answered["light"] == pytest.approx(ratio, rel=0.3)
