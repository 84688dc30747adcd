"""A model's `costs` folder: what was measured of it on this machine, kept for the next start."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

COSTS_DIR = "costs"


def kept_path(model_dir: Path, key: bytes, kind: str = "") -> Path:
    """The file of what was measured; `key` names all that this depends on."""
    return model_dir / COSTS_DIR / f"{kind}{hashlib.sha256(key).hexdigest()[:16]}.json"


def keep(path: Path, measured: msgspec.Struct) -> None:
    """Writes a table as JSON; logs if it cannot: a model's folder may be read-only."""
    partial = path.with_suffix(f".{os.getpid()}")
    encoded = msgspec.json.format(msgspec.json.encode(measured), indent=2)
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            partial.write_bytes(encoded + b"\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        logger.info("what was measured is not kept for the next start: %s", error.strerror)
