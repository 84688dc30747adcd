"""Servers for the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running_server import RunningServer

FAULTY_WORKER = Path(__file__).parent / "faulty_worker"


@pytest.fixture
def faulty_server(builtin_model):
    """Starts a server whose workers misbehave when a question asks for it."""

    @contextmanager
    def start(*flags: str) -> Iterator[RunningServer]:
        server = RunningServer(builtin_model, *flags, env={"PYTHONPATH": str(FAULTY_WORKER)})
        try:
            yield server
            assert server.process.poll() is None, server.log
        finally:
            server.close()

    return start
