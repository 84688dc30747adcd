"""Fixtures for every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness.server
from harness.rabbitmq import MISSING, is_installed, running_rabbitmq
from qa_service.preparation.prepare import Choices, prepare

ROOT = Path(__file__).resolve().parents[1]
harness.server.ENGINE += ("--cost_table", "off")
"""Unless flags say otherwise: no test waits for batches to be measured, as benchmarks do."""

SLOW = "\npytestmark = pytest.mark.slow\n"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves slow modules unread where slow tests are left out: they import torch and peft."""
    if collection_path.suffix != ".py" or "not slow" not in config.option.markexpr:
        return None
    return True if SLOW in collection_path.read_text() else None


@pytest.fixture(scope="session")
def builtin_model() -> Path:
    """The built-in model with its int8 file; what is there already is kept.

    It is made whole at once: other tests may run beside this one, on the same folder.
    """
    return prepare(Choices(output_dir=ROOT / "saved_models", precision="int8"))


@pytest.fixture(scope="session")
def rabbit():
    """A broker for all tests; each takes queues of its own."""
    if not is_installed():
        pytest.skip(MISSING)
    with running_rabbitmq() as broker:
        yield broker
