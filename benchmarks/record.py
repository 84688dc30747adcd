"""The Markdown section and the raw figures that a benchmark leaves behind.

A section says what was measured on what, when and by which command, then its tables. It is
printed, and kept as `results/NAME.md` and `results/NAME.json`, the raw figures. A run with
`--quick` is a trial: its files end in `.quick.md` and `.quick.json`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.server import ROOT
from qa_service.data.squad import OWN_QUESTIONS
from qa_service.installation import installed_version
from qa_service.machine import num_cpus, processor
from qa_service.programs.load import plan
from qa_service.server.models.model_options import DEFAULT_MODEL

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("onnxruntime", "tokenizers", "msgspec", "numpy")


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and in brackets the minimum and the maximum if there are several."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def median(values: Sequence[float]) -> float:
    values = [value for value in values if not math.isnan(value)]
    return statistics.median(values) if values else math.nan


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in any order; NaN if there are none."""
    return plan.percentile(sorted(values), percent)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; the first column is left-aligned, the others are right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{num_cpus()} cores of {processor().name}, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release().partition('-')[0]}"
    )


def versions(*packages: str) -> str:
    """Python's version and those of the packages; what is not installed is said to be so."""
    found = [f"{name} {installed_version(name) or 'not installed'}" for name in packages]
    return ", ".join([f"Python {platform.python_version()}", *found])


def command() -> str:
    """The command line, with each file by its name alone."""
    module = sys.modules["__main__"].__spec__
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module.name if module else "?", *words])


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def load_average() -> str:
    """How many processes ran or waited in the last minute: what else the machine was doing."""
    return f"{os.getloadavg()[0]:.1f}"


def make_parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    add("--questions_file", type=Path, default=OWN_QUESTIONS, help="JSON in SQuAD's format")
    add("--repeats", type=int, default=3, help="rounds over all targets")
    add("--quick", action="store_true", help="a trial: one round of short measurements")
    return parser


def add_before(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")


def checkouts_of(flags: argparse.Namespace) -> dict[str, tuple[Path, Path]]:
    """The checkouts and their models: each reads what was prepared in it."""
    now = {"now": (ROOT, flags.model)}
    if not flags.before:
        return now
    return {"before": (flags.before, flags.before / "saved_models" / flags.model.name), **now}


class Repeats(dict[str, dict[str, list[float]]]):
    """By row and figure, a value of each repeat."""

    def add(self, row: str, figures: Mapping[str, float]) -> None:
        of = self.setdefault(row, {})
        for name, value in figures.items():
            of.setdefault(name, []).append(value)
        print(f"{row}: {of}", flush=True)


class Section:
    """One benchmark's part of RESULTS.md, in the making.

    Args:
        packages: Further packages whose versions matter, than the serving libraries.
    """

    def __init__(
        self, name: str, title: str, flags: argparse.Namespace, packages: tuple[str, ...] = ()
    ) -> None:
        self._name = f"{name}.quick" if flags.quick else name
        self._started_s = time.perf_counter()
        # At SIGTERM, `with` blocks still stop what they have started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.raw: dict[str, object] = {
            "machine": machine(),
            "versions": versions(*PACKAGES, *packages),
            "date": now(),
            "load_average_before": load_average(),
            "command": command(),
            "questions": flags.questions_file.name,
            "model": flags.model.name,
        }
        self._parts = [f"## {title}"]

    def say(self, text: str) -> None:
        self._parts.append(text)
        print(f"\n{text}", flush=True)

    def close(self) -> None:
        self.raw["minutes"] = round((time.perf_counter() - self._started_s) / 60, 1)
        self._parts.insert(1, self._provenance())
        text = "\n\n".join(self._parts) + "\n"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self._name}.md").write_text(text)
        (RESULTS / f"{self._name}.json").write_text(json.dumps(self.raw, indent=1) + "\n")
        print(f"\n{text}", flush=True)

    def _provenance(self) -> str:
        raw = self.raw
        return (
            f"`{raw['command']}`, {raw['date']}, {raw['minutes']} minutes, load average before "
            f"{raw['load_average_before']}.\n{raw['machine']}. {raw['versions']}. "
            f"Model {raw['model']}, questions of {raw['questions']}."
        )
