"""Prometheus' text format, version 0.0.4: metric families as lines. Sans-IO.

# HELP qa_queue_length Requests waiting for an instance.
# TYPE qa_queue_length gauge
qa_queue_length 3
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Sample(msgspec.Struct, frozen=True):
    """One value of a family; `suffix` follows the family's name, as in `_bucket`."""

    value: float
    labels: Labels
    suffix: str = ""


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[Sample]


def histogram_samples(
    buckets: Iterable[tuple[float, int]], total: float, labels: Labels
) -> list[Sample]:
    """The samples of a histogram.

    Args:
        buckets: The upper bound of each bucket, ascending up to infinity, and the number of values
            in this bucket alone.
    """
    count, samples = 0, []
    for bound, values in buckets:
        count += values
        samples.append(Sample(count, {**labels, "le": _number(bound)}, "_bucket"))
    return [*samples, Sample(total, labels, "_sum"), Sample(count, labels, "_count")]


def write_text(families: Iterable[Family]) -> bytes:
    lines = []
    for family in families:
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n")
        for sample in family.samples:
            pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
            labels = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{family.name}{sample.suffix}{labels} {_number(sample.value)}\n")
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(value)
