"""What was measured of a model on a machine, kept beside the model for the next start."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

COSTS_DIR = "costs"


def keep(path: Path, found: msgspec.Struct) -> None:
    """Writes a finding as JSON; a model folder may well be read-only."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        logger.info("what was measured is not kept for the next start: %s", error.strerror)
