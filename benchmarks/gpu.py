"""Ten minutes on a GPU: what the first minutes on one leave open, in order of worth.

    python -m benchmarks.gpu --models saved_models/builtin saved_models/builtin-base
    python -m benchmarks.gpu --output found     # goes on where a run with this folder was
    python -m benchmarks.gpu --rehearse         # every step on the CPU, in three minutes

The steps: the machine; the tests that need a GPU; the GPU's own pace, in full batches of one shape;
a start as users start it, what `auto` takes, a killed instance and a share of the memory; each
model with each number of instances and clients; a longer load with the gaps in its answers.

Each result is a line of `OUTPUT/gpu.jsonl` as soon as it is there, and `OUTPUT/gpu.md` is written
again. A run may be stopped at any time; one with the same folder leaves out what is in it.

Models are prepared with `--precision fp16`; PyTorch takes those that have no `model.fp16.onnx` too.
Exit code 0 if every request was answered and every test passed, 1 if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps import (
    PROTOTYPE,
    PROTOTYPE_MS,
    REHEARSAL,
    Plan,
    Scale,
    about,
    cells,
    cells_of_prototype,
    engines_of,
    pace,
    pause,
    starts,
    test,
)
from benchmarks.load import uniform
from benchmarks.record import markdown, median, now, spread
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.instance.gpus import find_gpus
from qa_service.server.check.steps import check
from qa_service.server.config import ServerConfig
from qa_service.server.models.model_options import DEFAULT_MODEL


@dataclass(slots=True)
class Run:
    """A plan, until when a step may begin, and what has been found."""

    plan: Plan
    until_s: float
    found: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str, take: Callable[[], Any]) -> None:
        """Takes a step unless it was taken or the time is over, and writes what it found.

        A step that fails is a finding too: the next one may not.
        """
        if name in self.found or time.monotonic() > self.until_s:
            return
        print(f"{now()} {name}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        try:
            found = take()
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {str(error).strip()[-2000:]}"}
        self.found[name] = found
        took_s = round(time.monotonic() - began_s, 1)
        with (self.plan.flags.output / "gpu.jsonl").open("a") as file:
            file.write(json.dumps({"step": name, "took_s": took_s, "found": found}) + "\n")
        (self.plan.flags.output / "gpu.md").write_text(report(self))

    def load_found(self) -> None:
        """Reads what an earlier run with this folder has found."""
        path = self.plan.flags.output / "gpu.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            one = json.loads(line)
            self.found[one["step"]] = one["found"]


def main() -> int:
    flags = _flags()
    if not flags.rehearse and not (gpus := find_gpus()).found:
        check(ServerConfig.of(model=flags.models[0], devices="cuda:0", port=0))
        print(f"benchmarks.gpu: CUDA sees no GPU here ({gpus.why_none})", file=sys.stderr)
        return 2
    flags.output.mkdir(parents=True, exist_ok=True)
    scale = REHEARSAL if flags.rehearse else Scale()
    items = uniform(read_squad(flags.questions_file))
    run = Run(Plan(flags, scale, items), time.monotonic() + 60 * flags.minutes)
    run.load_found()
    with tempfile.TemporaryDirectory() as folder:
        for name, take in steps(run.plan, Path(folder)):
            if not name.startswith(tuple(flags.skip)):
                run.step(name, take)
    print((flags.output / "gpu.md").read_text())
    return int(any(_is_bad(found) for found in run.found.values()))


def _is_bad(found: Any) -> bool:
    return isinstance(found, dict) and bool(found.get("failed"))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--models", type=Path, nargs="+", default=[DEFAULT_MODEL], help="prepared models")
    add("--questions_file", type=Path, default=OWN_QUESTIONS, help="JSON in SQuAD's format")
    add("--minutes", type=float, default=10.0, help="after which no step begins")
    add("--output", type=Path, default=Path("build/gpu"), help="for gpu.jsonl and gpu.md")
    add("--skip", nargs="+", default=[], help="steps whose names begin with one of these")
    add("--rehearse", action="store_true", help="run every step on the CPU, briefly")
    return parser.parse_args()


def steps(plan: Plan, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The steps' names and what takes each, the most worth first."""
    scale, models = plan.scale, plan.flags.models
    yield "machine", about
    yield "tests", partial(test, plan)
    for model in models:
        for engine in engines_of(model, plan):
            yield f"pace {model.name} {engine}", partial(pace, plan, model, engine)
    yield "start", partial(starts, plan, models[0])
    for instances in scale.instances:
        for model in models:
            for engine in engines_of(model, plan):
                name = f"cells {model.name} {engine} {instances}"
                yield name, partial(cells, plan, model, engine, instances)
        if instances == scale.instances[0]:
            model, engine = models[0], engines_of(models[0], plan)[0]
            yield "pause", partial(pause, plan, model, engine, instances)
            prototype = partial(cells_of_prototype, plan, folder, instances)
            yield f"cells {PROTOTYPE} pytorch {instances}", prototype


def report(run: Run) -> str:
    """All that has been found, as Markdown."""
    parts = ["## GPU"]
    for name, found in run.found.items():
        if name.startswith("cells ") and not _is_bad(found):
            parts.append(f"### {name}: ready after {found['ready_s']} s\n\n{cell_table(found)}")
        else:
            parts.append(f"### {name}\n\n```\n{in_lines(found)}\n```")
    if prototype := run.found.get(f"cells {PROTOTYPE} pytorch 4"):
        parts.append(gains(prototype))
    return "\n\n".join(parts) + "\n"


def in_lines(found: dict[str, Any]) -> str:
    """Each finding in a line."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in found.items())


def cell_table(found: dict[str, Any]) -> str:
    """The cells of one server: medians of the rounds, and the least and the most."""
    rows = []
    for clients in found["rounds"][0] if found["rounds"] else ():
        rounds = [one[clients] for one in found["rounds"]]

        def column(name: str, digits: int, rounds: Sequence[dict] = rounds) -> str:
            return spread([one.get(name, float("nan")) for one in rounds], digits)

        middle = sorted(rounds, key=lambda one: one["throughput"])[len(rounds) // 2]
        rows.append([clients, column("throughput", 0), column("p50", 1), column("p99", 1),
                     column("joules", 4), middle.get("bound", "")])  # fmt: skip
    head = ["clients", "answers/s", "p50, ms", "p99, ms", "joules an answer", "bounded by"]
    return markdown(head, rows)


def gains(found: dict[str, Any]) -> str:
    """Our median latencies and the prototype's mean ones, where the cells are the same."""
    rows = [
        [clients, theirs_ms, f"{ours_ms:.2f}", f"{theirs_ms / ours_ms:.1f}"]
        for clients, theirs_ms in PROTOTYPE_MS.items()
        if (ours_ms := median([one[str(clients)]["p50"] for one in found.get("rounds", ())]))
    ]
    return markdown(["clients", "prototype, mean ms", "here, p50 ms", "times faster"], rows)


if __name__ == "__main__":
    sys.exit(main())
