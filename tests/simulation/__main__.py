"""Runs seeds, and shrinks those that fail: `python -m tests.simulation --help`."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from msgspec import structs

from qa_service.server.config import ServerConfig, changed_options
from qa_service.server.models.model_options import ModelOptions
from tests.simulation.run import run
from tests.simulation.scenario import Scenario, draw
from tests.simulation.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and shrink it if it fails")
    parser.add_argument("--seeds", default="0:200", help="run those from A up to B, as in 0:200")
    parser.add_argument("--log", default="", help="print the server's log from this level on")
    parser.add_argument("--whole", action="store_true", help="do not leave out events")
    its = parser.parse_args()
    if its.seed is not None:
        return _replay(its.seed, its.log, shrinks=not its.whole)
    first, _, end = its.seeds.partition(":")
    return _run_all(range(int(first), int(end)))


def _replay(seed: int, log_level: str, *, shrinks: bool) -> int:
    scenario = draw(seed)
    report = run(scenario)
    if report.failure and shrinks:
        check = report.failure.check
        scenario = shrink(scenario, lambda other: _fails_so(other, check))
    print(*_say(scenario), sep="\n")
    report = run(scenario, log_level)
    print(f"seed {seed}: {report.failure or 'all holds'}; {report.steps} steps,", end=" ")
    print(", ".join(f"{code} {count}" for code, count in report.outcomes.items()))
    return int(report.failure is not None)


def _fails_so(scenario: Scenario, check: str) -> bool:
    failure = run(scenario).failure
    return failure is not None and failure.check == check


def _say(scenario: Scenario):
    yield f"seed {scenario.seed}, {scenario.machine}, {scenario.capacity} bytes under way"
    for number, config in enumerate(scenario.configs):
        yield f"configuration {number}: {', '.join(_changed(config))}"
    yield from (f"client {number}: {client}" for number, client in enumerate(scenario.clients))
    yield from map(str, scenario.events)


def _changed(config: ServerConfig):
    """What a configuration has that is not the default."""
    for name in changed_options(ServerConfig(), config):
        section, _, option = name.partition(" ")
        yield f"{option}={getattr(getattr(config, section.strip('[]')), option)!r}"
    default = {**structs.asdict(ModelOptions(path=Path())), **structs.asdict(config.instances)}
    for name, model in config.models.items():
        its = structs.asdict(model)
        yield f"{name}: { ({k: v for k, v in its.items() if v != default[k] and k != 'path'}) }"
    if config.routes:
        yield f"routes {config.routes}"


def _run_all(seeds: range) -> int:
    began_s = time.perf_counter()
    steps = rounds = 0
    failures: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        report = run(draw(seed))
        steps, rounds = steps + report.steps, rounds + report.rounds
        outcomes += report.outcomes
        if report.failure:
            failures[report.failure.check] += 1
            first = str(report.failure).splitlines()[-1]
            print(f"seed {seed}: {report.failure.check}: {first[:300]}", flush=True)
    took_s = time.perf_counter() - began_s
    print(f"{len(seeds)} seeds in {took_s:.1f} s: {steps} steps, {steps / took_s:.0f} a second;"
          f" {rounds} rounds of the loop")  # fmt: skip
    print(dict(outcomes.most_common()))
    print(f"{failures.total()} fail: {dict(failures)}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
