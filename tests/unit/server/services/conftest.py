"""No test of services starts a search process."""

import pytest

from qa_service.server.services import searches
from tests.unit.server.services.search_processes import FakeProcess


@pytest.fixture(autouse=True)
def _no_search_processes(monkeypatch):
    monkeypatch.setattr(FakeProcess, "made", {})
    monkeypatch.setattr(searches, "Child", FakeProcess)
