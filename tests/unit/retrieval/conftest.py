"""Documents read without a process of their own, where that process is not what is tested."""

import pytest

from harness.collections import reading_here


@pytest.fixture
def reads_here():
    with reading_here():
        yield
