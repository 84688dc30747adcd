"""Weights over real sockets, with batches; counts of answers while both clients have some due."""

import socket
from collections import Counter
from select import select

import pytest

from harness.frames import ASK, frame, receive
from harness.process import GIVE_UP_S
from harness.server import running_server
from tests.integration.test_bounds import FLAGS, sleeping
from tests.programs import token_flags

TOKENS = ("token-of-the-heavy-one name=heavy weight=8", "token-of-the-light-one name=light")
IN_FLIGHT, MAX_AT_INSTANCES = 60, 2 * 2 * 8
WARM_UP, COUNTED = 100, 500


class Asker:
    """A client with a token that always has this many questions in flight."""

    def __init__(self, sock: socket.socket, name: str, priority: int) -> None:
        self.sock, self.name, self.priority, self.next_id = sock, name, priority, 0
        sock.sendall(frame({"type": "auth", "token": f"token-of-the-{name}-one"}))
        assert receive(sock)["auth"] == "ok"

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.next_id += 1
            self.sock.sendall(frame({"id": self.next_id, "priority": self.priority, **ASK}))


def answers(*askers: Asker) -> Counter:
    """Waits for answers, and reads all that have come; returns how many each client got."""
    by_sock = {asker.sock: asker for asker in askers}
    answered, timeout_s = Counter(), GIVE_UP_S
    while ready := select(by_sock, [], [], timeout_s)[0]:
        for sock in ready:
            assert "answer" in receive(sock)
            answered[by_sock[sock].name] += 1
        timeout_s = 0
    assert answered, "no answer came"
    return answered


@pytest.fixture(scope="module")
def server(builtin_model, tmp_path_factory):
    tokens = token_flags(tmp_path_factory.mktemp("tokens"), *TOKENS)
    # No limit on time: on a slow, busy machine the light client waits for minutes.
    flags = (
        *(*FLAGS, "--num_inference_sessions", "2", "--max_batch_size", "8"),
        *("--request_timeout_ms", "0"),
    )
    engine = sleeping(FEED_FIXED_US="20000", FEED_ROW_US="2000")
    with running_server(builtin_model, *tokens, *flags, wrapper=engine) as running:
        yield running


@pytest.mark.parametrize(
    ("priorities", "ratio"), [((0, 0), 8), ((0, 7), 1), ((4, 9), 4)], ids=["8:1", "8:8", "40:10"]
)
def test_two_clients_with_sixty_in_flight_get_by_weight_and_priority(server, priorities, ratio):
    counted, shared = Counter(), 0
    with server.connect() as heavy, server.connect() as light:
        askers = Asker(heavy, "heavy", priorities[0]), Asker(light, "light", priorities[1])
        for asker in askers:
            asker.ask(IN_FLIGHT)
        while counted.total() < COUNTED:
            answered = answers(*askers)
            for asker in askers:
                asker.ask(answered[asker.name])
            shared += answered.total()
            if max(answered.values()) > IN_FLIGHT - MAX_AT_INSTANCES:
                shared = 0  # this process was held up: a client may have had none in the queue
            elif shared > WARM_UP:
                counted += answered
    assert counted["heavy"] / counted["light"] == pytest.approx(ratio, rel=0.3)
