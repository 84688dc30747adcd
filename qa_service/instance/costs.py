"""Where an instance's cost table comes from: a file, the model's folder, an estimate, runs.

The table is kept in the model's folder. What corrects it while the instance runs is in
`learned_costs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.instance.batch_cost import CostTable, load_costs
from qa_service.instance.model_folder.costs_dir import keep

logger = logging.getLogger(__name__)

AUTO, MEASURE, OFF = "auto", "measure", "off"
MIN_LENGTHS = 2
"""A table from a file must show how the cost grows with the length: that takes two lengths."""


def find_costs(
    wanted: str,
    path: Path,
    measure: Callable[[], CostTable],
    estimate: Callable[[], CostTable] | None = None,
) -> CostTable | None:
    """The cost table of an instance.

    Args:
        wanted: `auto` takes the kept table, or an estimate, or measures and keeps one; `measure`
            measures again; `off` returns None; any other value is a table's file.
        path: Of the kept table, see `kept_path`.
        estimate: None where a table must be measured.
    """
    if wanted == OFF:
        return None
    if named := named_costs(wanted):
        return named
    if wanted == AUTO and path.exists():
        try:
            return load_costs(path)
        except SetupError as error:
            logger.warning("%s; it is made again", error)
    if wanted == AUTO and estimate:
        return estimate()
    costs = measure()
    keep(path, costs)
    return costs


def named_costs(wanted: str) -> CostTable | None:
    """The table in the file that an option names; None if it names none."""
    if wanted in (AUTO, MEASURE, OFF):
        return None
    named = load_costs(Path(wanted))
    if len(named.lengths) < MIN_LENGTHS:
        raise SetupError(f"--cost_table {wanted} holds fewer than {MIN_LENGTHS} lengths")
    return named
