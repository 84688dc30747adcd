"""Ten thousand seeds of the simulated machine, other ones than those of every `make test`."""

import pytest

from tests.simulation.run import check_seeds

pytestmark = pytest.mark.soak

SEEDS_A_TEST = 500


@pytest.mark.parametrize("first", range(1000, 11_000, SEEDS_A_TEST))
def test_random_seeds_keep_every_promise(first):
    check_seeds(range(first, first + SEEDS_A_TEST))
