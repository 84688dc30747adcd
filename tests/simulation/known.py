"""Faults that are known and not mended yet: checks that would find them look away."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
"""By the item of the issue: what is wrong. An entry goes with its fix; `--known none` runs without."""
