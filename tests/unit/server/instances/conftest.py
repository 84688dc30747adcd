"""Pools of instances that the test plays, and a clock that it moves."""

import pytest

from tests.support import FakeTimeLoop
from tests.unit.server.handled_worker import HandledPool


@pytest.fixture
def start():
    """Starts pools, whose instances are not ready."""
    made = []

    def start(num_local=1, **options):
        made.append(HandledPool(FakeTimeLoop(), num_local, **options))
        made[-1].pool.resize(made[-1].options.num_instances)
        return made[-1]

    yield start
    for pool in made:
        pool.close()
