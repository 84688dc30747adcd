"""An instance's cost table: measured once for a model on a machine, then kept in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.instance.batch_cost import CostTable, load_costs
from qa_service.instance.model_folder.costs_dir import keep, kept_path

logger = logging.getLogger(__name__)

AUTO, MEASURE, OFF = "auto", "measure", "off"
MIN_LENGTHS = 2
"""A table from a file must show how the cost grows with the length: that takes two lengths."""


def find_costs(
    wanted: str, model_dir: Path, key: str, measure: Callable[[], CostTable]
) -> CostTable | None:
    """The cost table of an instance.

    Args:
        wanted: `auto` takes the kept table, or measures and keeps one; `measure` measures again;
            `off` returns None; any other value is a table's file.
        key: Names all that the costs depend on.

    Raises:
        SetupError: The file is no table, or has too few lengths.
    """
    if wanted == OFF:
        return None
    if named := named_costs(wanted):
        return named
    path = kept_path(model_dir, key.encode())
    if wanted == AUTO and path.exists():
        try:
            return load_costs(path)
        except SetupError as error:
            logger.warning("%s; measuring again", error)
    costs = measure()
    keep(path, costs)
    return costs


def named_costs(wanted: str) -> CostTable | None:
    """The table in the file that an option names; None if it names none.

    Raises:
        SetupError: The file is no table, or has too few lengths.
    """
    if wanted in (AUTO, MEASURE, OFF):
        return None
    named = load_costs(Path(wanted))
    if len(named.lengths) < MIN_LENGTHS:
        raise SetupError(f"--cost_table {wanted} holds fewer than {MIN_LENGTHS} lengths")
    return named
