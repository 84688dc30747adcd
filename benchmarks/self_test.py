"""What known answers and self-tests cost: a start, and a server that is idle.

    python -m benchmarks.self_test

Starts of a server with two instances take turns: of a model with known answers, of a copy without.
Then three servers are idle side by side: without self-tests, with one each 600 s, and with one a
second. What one costs follows from the third; a busy server gives one each 600 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown, median, spread
from harness.models import copy_model
from harness.process import cpu_s, tree
from harness.server import RunningServer, engine_flags, running_server
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    load_manifest,
    save_manifest,
)

SETTLES_S = 30.0
"""After it is ready, an idle instance compiles the usual lengths: that is the start's."""
INTERVAL_S = 600
INTERVALS_S = (0, INTERVAL_S, 1)


def without_known_answers(model: Path, folder: Path) -> Path:
    """A copy as an older version has prepared it."""
    copy = copy_model(model, folder / model.name, KNOWN_ANSWERS_FILE)
    manifest = load_manifest(copy)
    files = {name: hash for name, hash in manifest.files.items() if name != KNOWN_ANSWERS_FILE}
    save_manifest(copy, msgspec.structs.replace(manifest, files=files))
    return copy


def used_s(server: RunningServer) -> float:
    """Processor time of the server and its instances."""
    return sum(map(cpu_s, tree(server.process.pid)))


def starts(models: Mapping[str, Path], repeats: int, engine: str) -> dict[str, list[list[float]]]:
    """Seconds until each start was ready, and the processor time that it took."""
    taken: dict[str, list[list[float]]] = {name: [[], []] for name in models}
    for _ in range(repeats):
        for name, model in models.items():
            started_s = time.perf_counter()
            with running_server(model, *engine_flags(engine)) as server:
                taken[name][0].append(time.perf_counter() - started_s)
                taken[name][1].append(used_s(server))
    return taken


def idle(model: Path, engine: str, seconds: float) -> dict[int, tuple[float, int]]:
    """Processor time of idle servers by their interval, and how many self-tests they gave."""
    with ExitStack() as stack:
        servers = {
            interval_s: stack.enter_context(
                running_server(
                    model, *engine_flags(engine), "--self_test_interval_s", str(interval_s)
                )
            )
            for interval_s in INTERVALS_S
        }
        time.sleep(SETTLES_S)
        before = {interval_s: (used_s(its), passed(its)) for interval_s, its in servers.items()}
        time.sleep(seconds)
        return {
            interval_s: (used_s(its) - before[interval_s][0], passed(its) - before[interval_s][1])
            for interval_s, its in servers.items()
        }


def passed(server: RunningServer) -> int:
    """How many self-tests its instances have passed while it serves."""
    found: int = server.stats()["counters"]["self_tests_total"]["passed"]
    return found


def main() -> None:
    """Measures, and prints a section for RESULTS.md."""
    flags = _flags()
    if flags.quick:
        flags.repeats, flags.idle_s = 1, 20.0
    section = Section("self_test", "Known answers and self-tests", flags)
    with tempfile.TemporaryDirectory() as folder:
        models = {
            "with known answers": flags.model,
            "without": without_known_answers(flags.model, Path(folder)),
        }
        taken = starts(models, flags.repeats, flags.engine)
        idles = idle(flags.model, flags.engine, flags.idle_s)
    section.raw |= {"engine": flags.engine, "starts": taken, "idle": idles}
    section.say(
        f"Starts of two instances ({flags.engine}), {flags.repeats} each in turn; seconds, median "
        "(minimum-maximum):"
    )
    rows = [[name, *(spread(values, 2) for values in its)] for name, its in taken.items()]
    section.say(markdown(["start", "until ready", "processor time"], rows))
    wall_s, processor_s = (median(a) - median(b) for a, b in zip(*taken.values(), strict=True))
    section.say(
        f"Known answers take {wall_s:.2f} s of a start, {processor_s:.2f} s of processor time."
    )
    section.say(f"Three idle servers, {flags.idle_s:g} s side by side:")
    rows = [[str(s), f"{used * 1e3:.0f}", str(number)] for s, (used, number) in idles.items()]
    section.say(markdown(["`--self_test_interval_s`", "processor time, ms", "self-tests"], rows))
    (base, _), (often, number) = idles[0], idles[1]
    each_s = (often - base) / number
    section.say(
        f"A self-test takes {each_s * 1e3:.0f} ms of a processor: one each {INTERVAL_S} s is "
        f"{each_s / INTERVAL_S:.4%} of an instance's time, busy or idle."
    )
    section.close()


def _flags() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.set_defaults(repeats=7)
    parser.add_argument("--engine", default="openvino:int8", metavar="ENGINE:PRECISION")
    parser.add_argument("--idle_s", type=float, default=120.0, help="how long servers are idle")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
