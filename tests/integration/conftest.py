"""A server as users start it."""

import pytest

from harness.server import running_server


@pytest.fixture(scope="module")
def server(builtin_model):
    with running_server(builtin_model) as running:
        yield running
