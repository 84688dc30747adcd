"""Certificates and tokens that are read again: what hangs, what is faulty, what comes late."""

from typing import cast

import pytest

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS
from qa_service.server.front.tokens import Authenticator
from qa_service.server.front.transport import Credentials, Transport
from tests.unit.server.fake_services import ThreadClock


class Holder:
    """Stands for the transport, or the authenticator: what is on its disk, and in use."""

    def __init__(self):
        self.on_disk, self.used, self.fault = 0, [], None

    def load(self):
        if self.fault:
            raise self.fault
        return self.on_disk

    def use(self, loaded):
        self.used.append(loaded)


@pytest.fixture
def world():
    loop, transport, authenticator, taken = ThreadClock(), Holder(), Holder(), []
    credentials = Credentials(
        cast(EventLoop, loop),
        cast(Transport, transport),
        cast(Authenticator, authenticator),
        on_taken=lambda: taken.append(True),
    )
    return loop, transport, authenticator, taken, credentials


def test_nothing_is_read_on_the_loop(world):
    loop, transport, authenticator, taken, credentials = world
    credentials.reload()
    assert not transport.used
    loop.run_thread(0)
    assert (transport.used, authenticator.used, taken) == ([0], [0], [True])


@pytest.mark.parametrize("fault", [SetupError("no certificate"), OSError("input/output error")])
def test_a_faulty_file_leaves_all_credentials_unchanged(world, caplog, fault):
    loop, transport, authenticator, taken, credentials = world
    authenticator.fault = fault
    credentials.reload()
    loop.run_thread(0)
    assert (transport.used, authenticator.used, taken) == ([], [], [])
    assert f"certificates and tokens are unchanged: {fault}" in caplog.text
    assert credentials.fault == f"certificates and tokens are unchanged: {fault}"
    authenticator.fault = None
    credentials.reload()
    loop.run_thread()
    assert credentials.fault == ""


def test_readings_that_hang_are_logged_and_bounded_and_the_latest_is_used(world, caplog):
    loop, transport, _, _, credentials = world
    for _ in range(MAX_READINGS):
        credentials.reload()
    loop.advance(HANGS_AFTER_S - 1)
    assert not caplog.text
    loop.advance(1)
    assert "could not be read for 10 s" in caplog.text
    credentials.reload()
    assert len(loop.threads) == MAX_READINGS
    assert "4 readings of their files hang" in caplog.text
    for _ in range(MAX_READINGS):
        transport.on_disk += 1
        loop.run_thread()
    assert transport.used == [MAX_READINGS]
