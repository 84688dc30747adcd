"""A server that answers rightly, for tests of what stands before its engine."""

import pytest

from harness.server import ONE_INSTANCE, running_server


@pytest.fixture(scope="module")
def server(quick_model):
    with running_server(quick_model, *ONE_INSTANCE) as running:
        yield running
