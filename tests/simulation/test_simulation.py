"""The simulated machine: what it promises of the server, and that it finds what is wrong."""

from itertools import chain
from unittest.mock import patch

import pytest

from tests.simulation import inside, inside_gateway
from tests.simulation.grpc_drawing import has_gateway
from tests.simulation.pausing import has_pause
from tests.simulation.run import check_seeds, run
from tests.simulation.scenario import Event, Scenario, draw
from tests.simulation.shrink import shrink

NUM_SEEDS, SEEDS_A_TEST = 200, 25
MAX_DRAWN = 8000
PLANTED = {**inside.PLANTED, **inside_gateway.PLANTED}
SHOWN_BY = {"doubt": 2090, "orphans": 19, "plan": 49, "unavailable": 198}
"""Seeds with which the search for a planted fault begins, so that it takes no seconds."""


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_A_TEST))
def test_random_seeds_keep_every_promise(first):
    check_seeds(range(first, first + SEEDS_A_TEST))


@pytest.mark.parametrize("with_gateway", [False, True])
def test_a_seed_gives_the_same_run_each_time(with_gateway):
    seeds = [seed for seed in range(1, NUM_SEEDS) if has_gateway(seed) == with_gateway]
    reports = [run(draw(seed)) for seed in (seeds[0], seeds[0], seeds[1])]
    traces = [(report.trace, report.steps, report.outcomes) for report in reports]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.parametrize("check", PLANTED)
def test_a_planted_fault_is_found(check):
    first = SHOWN_BY.get(check, 1)
    scenarios = map(draw, chain(range(first, MAX_DRAWN), range(1, first)))
    with patch.object(*PLANTED[check]):
        failures = (run(one).failure for one in scenarios if may_show(check, one))
        assert check in (failure.check for failure in failures if failure)


def may_show(check: str, scenario: Scenario) -> bool:
    """Whether a scenario has what it may take: a gateway, a pause, wrong answers found out."""
    if check in inside_gateway.PLANTED:
        return has_gateway(scenario.seed)
    if check == "unavailable":
        return has_pause(scenario.seed)
    if check != "doubt":
        return True
    config = scenario.configs[0]
    options = [config.instances, *config.models.values()]
    return (
        config.cache.cache_bytes > 0
        and any(one.self_test_interval_s == 1 for one in options)
        and sum(event.kind == "break_engine" for event in scenario.events) > 1
    )


def test_a_failing_run_shrinks_to_the_events_that_it_takes():
    with patch.object(*PLANTED["answer"]):

        def fails(scenario):
            failure = run(scenario).failure
            return failure is not None and failure.check == "answer"

        scenario = next(found for seed in range(1, NUM_SEEDS) if fails(found := draw(seed)))
        events = shrink(scenario, fails).events
    assert len(events) <= 3 < len(scenario.events)
    assert {"ask", "infer", "cancel", "flood"} & {event.kind for event in events}


def test_shrinking_keeps_events_that_fail_only_together():
    scenario = draw(1)
    scenario.events[:] = [Event(float(number), "ask") for number in range(40)]
    needed = [scenario.events[3], scenario.events[31]]
    shrunk = shrink(scenario, lambda other: all(event in other.events for event in needed))
    assert shrunk.events == needed
