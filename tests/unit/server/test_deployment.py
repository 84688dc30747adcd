"""Looks for changes of what is served."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from qa_service.errors import SetupError
from qa_service.server.config import ServerConfig
from qa_service.server.deployment import Deployment
from tests.unit.server.fake_services import ManualClock

POLL_S = 5


class Source:
    """A configuration that cannot be read for a while."""

    file = Path("server.toml")

    def __init__(self, config):
        self.config, self.fault, self.reads = config, None, 0

    def read(self):
        self.reads += 1
        if self.fault:
            raise self.fault
        return self.config


@pytest.fixture
def source(monkeypatch):
    config = ServerConfig.of(poll_interval_s=POLL_S)
    monkeypatch.setattr(
        "qa_service.server.deployment.load_manifest", lambda _: SimpleNamespace(name="a")
    )
    monkeypatch.setattr(
        "qa_service.server.deployment.make_plan", lambda *_: SimpleNamespace(routes={})
    )
    return Source(config)


@pytest.mark.parametrize(
    "fault", [OSError(5, "Input/output error"), SetupError("no"), ZeroDivisionError()]
)
def test_a_look_that_fails_is_followed_by_another(source, fault, caplog):
    clock, used = ManualClock(), []
    parts = {
        "router": SimpleNamespace(use=lambda _: None),
        "engines": SimpleNamespace(),
        "retrieval": SimpleNamespace(use=lambda *given: used.append(given)),
    }
    catalog = SimpleNamespace(plan=None, apply=lambda _: None)
    deployment = Deployment(source.config, source, clock, catalog, **parts)
    deployment.start()
    source.fault = fault
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError):  # which the loop logs
            clock.advance(POLL_S)
    assert source.reads == 3
    assert [r.levelno for r in caplog.records].count(logging.ERROR) <= 1
    source.fault = None
    clock.advance(POLL_S)
    assert len(used) == 2
