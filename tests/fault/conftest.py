"""Servers for the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.server import INSTANT, RunningServer

FAULTY_WORKER = Path(__file__).parent / "faulty_worker"


@pytest.fixture
def faulty_server(builtin_model):
    """Starts a server whose workers misbehave when a question asks for it."""

    @contextmanager
    def start(*flags: str) -> Iterator[RunningServer]:
        env = {"PYTHONPATH": str(FAULTY_WORKER)}
        server = RunningServer(builtin_model, *INSTANT, *flags, env=env)
        try:
            yield server
            assert not server.process.poll(), server.log  # it runs, or was stopped cleanly
        finally:
            server.close()

    return start
