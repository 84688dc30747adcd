"""The Markdown section and the raw figures that a benchmark leaves behind.

A section says what was measured on what, when and by which command, then its tables. It is
printed, and kept as `results/NAME.md` and `results/NAME.json`, the raw figures. A run with
`--quick` is a trial: its files end in `.quick.md` and `.quick.json`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from benchmarks.machine import command, load_average, machine, now, versions
from harness.server import ROOT
from qa_service.data.squad import OWN_QUESTIONS
from qa_service.server.models.model_options import DEFAULT_MODEL

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("onnxruntime", "tokenizers", "msgspec", "numpy")


def make_parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    add("--questions_file", type=Path, default=OWN_QUESTIONS, help="JSON in SQuAD's format")
    add("--repeats", type=int, default=3, help="rounds over all targets")
    add("--quick", action="store_true", help="a trial: one round of short measurements")
    return parser


def checkouts_of(flags: argparse.Namespace) -> dict[str, tuple[Path, Path]]:
    """The checkouts and their models: each reads what was prepared in it."""
    now = {"now": (ROOT, flags.model)}
    if not flags.before:
        return now
    return {"before": (flags.before, flags.before / "saved_models" / flags.model.name), **now}


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
