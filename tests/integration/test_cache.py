"""The response cache in a real server: hits, single flight, and a reload of another model."""

import pytest

from harness.frames import ASK, frame, receive
from harness.server import ONE_INSTANCE, running_server

FLAGS = (*ONE_INSTANCE, "--cache_bytes", "1000000")


@pytest.fixture(scope="module")
def server(quick_model):
    with running_server(quick_model, *FLAGS) as running:
        yield running


def counters(server):
    return server.stats()["counters"]


def test_the_second_of_two_equal_questions_is_cached(server):
    question = {**ASK, "question": "Who wrote it all?"}
    first, second = server.ask(id=1, **question), server.ask(id="two", **question)
    assert "cached" not in first
    assert second.pop("cached") is True
    assert second.pop("timings_ms") == {"queue": 0.0, "inference": 0.0}
    del first["timings_ms"]
    assert {**first, "id": "two"} == second
    stats = server.stats()
    assert stats["counters"]["cache_hits_total"] > 0
    assert stats["gauges"]["cache_entries"] > 0


def test_fifty_equal_requests_of_as_many_clients_make_one_run(server):
    question = {"question": "Who wrote the letter to Ada?", "text": ASK["text"] * 12}
    before = counters(server)
    clients = [server.connect() for _ in range(50)]
    for number, client in enumerate(clients):
        client.sendall(frame({"id": number, **question}))
    replies = [receive(client) for client in clients]
    for client in clients:
        client.close()
    assert [reply["id"] for reply in replies] == list(range(50))
    assert len({(reply["answer"], reply["start"], reply["score"]) for reply in replies}) == 1
    after = counters(server)
    assert after["cache_misses_total"] - before["cache_misses_total"] == 1
    assert after["batches_total"] - before["batches_total"] == 1
