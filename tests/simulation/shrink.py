"""Leaves out events of a failing run until each that is left is needed (Zeller's ddmin)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.simulation.scenario import Event, Scenario


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The scenario with as few events as still fail; `fails` says whether one fails that way."""
    events: Sequence[Event] = scenario.events
    parts = 2
    while len(events) >= 1:
        size = max(1, -(-len(events) // parts))
        for at in range(0, len(events), size):
            fewer = [*events[:at], *events[at + size :]]
            if fails(replace(scenario, events=fewer)):
                events, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(events), parts * 2)
    return replace(scenario, events=list(events))
