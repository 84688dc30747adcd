"""The log: which of its lines are left out."""

import logging

import pytest

from qa_service.logs import MAX_PEERS, PEER_INTERVAL_S, OneLineAPeer
from tests.support import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def said(clock):
    """Says that a peer is refused; returns the line, or None if it is left out."""
    one_line = OneLineAPeer(clock.perf_counter)

    def say(peer):
        record = logging.LogRecord("qa", logging.INFO, "", 0, "%s is refused", (peer,), None)
        record.peer = peer
        return record.getMessage() if one_line.filter(record) else None

    return say


def test_a_peer_has_a_line_a_minute_on_whatever_port(said, clock):
    assert said("[::1]:1000") == "[::1]:1000 is refused"
    assert [said(f"[::1]:{port}") for port in (1000, 1001)] == [None, None]
    assert said("10.0.0.1:1000") == "10.0.0.1:1000 is refused (2 such lines left out before it)"
    clock.pass_s(PEER_INTERVAL_S)
    assert said("[::1]:1002") == "[::1]:1002 is refused"


def test_any_number_of_peers_have_a_bounded_number_of_lines(said, clock):
    lines = [said(f"10.0.{number // 256}.{number % 256}:1") for number in range(MAX_PEERS + 50)]
    assert [line is not None for line in lines] == [True] * MAX_PEERS + [False] * 50
    clock.pass_s(PEER_INTERVAL_S)
    assert said("10.1.0.0:1") == "10.1.0.0:1 is refused (50 such lines left out before it)"


def test_other_lines_are_not_counted(said):
    record = logging.LogRecord("qa", logging.INFO, "", 0, "ready", (), None)
    one_line = OneLineAPeer()
    assert all(one_line.filter(record) for _ in range(MAX_PEERS + 1))
