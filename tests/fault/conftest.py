"""Servers for the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.server import INSTANT, RunningServer
from tests.fault.faults import FAULTY_WORKER, Permits


@pytest.fixture
def faulty_server(builtin_model):
    """Starts a server whose workers misbehave when a question asks for it."""

    @contextmanager
    def start(*flags: str, permits: Permits | None = None) -> Iterator[RunningServer]:
        env = permits.env if permits else {"PYTHONPATH": str(FAULTY_WORKER)}
        server = RunningServer(builtin_model, *INSTANT, *flags, env=env)
        try:
            yield server
            assert not server.process.poll(), server.log  # it runs, or was stopped cleanly
        finally:
            server.close()

    return start
