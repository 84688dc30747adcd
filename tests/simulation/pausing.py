"""Draws a pause of the server, alone or with its machine: it is stopped, or suspended."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.scenario import Event

SHARE = 0.15
"""Of the seeds that have a pause."""
_SECONDS = (2.5, 40.0)
"""Noticed by the loop however long it was to wait; longer than no timeout, and than most."""
_SOON_S = (0.0, 0.0002, 0.001)
"""Meanwhile the search or the batch of a request is made."""

_ASKING = {"ask", "infer", "search", "cancel", "flood"}


def has_pause(seed: int) -> bool:
    """Whether a seed has a pause; all else of its scenario is the same without."""
    return random.Random(f"pause {seed}").random() < SHARE


def draw_pause(seed: int, events: Sequence[Event]) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """When the pause begins, shortly after something is asked; what happens; and its values."""
    asked_s = [event.at_s for event in events if event.kind in _ASKING]
    draws = random.Random(f"pause of {seed}")
    if has_pause(seed) and asked_s:
        at_s = draws.choice(asked_s) + draws.choice(_SOON_S)
        whole_machine = draws.random() < 0.7
        yield at_s, "pause", {"seconds": draws.choice(_SECONDS), "whole_machine": whole_machine}
