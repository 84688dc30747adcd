"""Fixtures for every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_service.preparation.prepare import Choices, prepare

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def builtin_int8_model() -> Path:
    """The same, its int8 file beside; what is there already is kept."""
    return prepare(Choices(output_dir=ROOT / "saved_models", precision="int8"))


@pytest.fixture(scope="session")
def builtin_model() -> Path:
    """The prepared built-in model; prepared now if it was not."""
    prepare(Choices(model="builtin", output_dir=ROOT / "saved_models"))
    return ROOT / "saved_models" / "builtin"
