"""A session's cost table: measured once for a model on a machine, then kept beside the model."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from qa_service.batching import CostTable, load_costs
from qa_service.errors import SetupError

logger = logging.getLogger(__name__)

COSTS_DIR = "costs"
AUTO, MEASURE, OFF = "auto", "measure", "off"


def find_costs(
    wanted: str, model_dir: Path, key: str, measure: Callable[[], CostTable]
) -> CostTable | None:
    """The cost table of a session.

    Args:
        wanted: `auto` takes the kept table, or measures and keeps one; `measure` measures anew;
            `off` does without; anything else is a table's file.
        model_dir: The prepared model.
        key: All that the costs depend on, in words.
        measure: Measures them.

    Raises:
        SetupError: The file named is no table.
    """
    if wanted == OFF:
        return None
    if wanted not in (AUTO, MEASURE):
        return load_costs(Path(wanted))
    path = model_dir / COSTS_DIR / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if wanted == AUTO and path.exists():
        try:
            return load_costs(path)
        except SetupError as error:
            logger.warning("%s; measuring anew", error)
    costs = measure()
    _keep(costs, path)
    return costs


def _keep(costs: CostTable, path: Path) -> None:
    """Writes the table for the next start; a model folder may well be read-only."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")
        partial.replace(path)
    except OSError as error:
        logger.info("the cost table is not kept for the next start: %s", error.strerror)
