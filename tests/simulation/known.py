"""Faults that are known and not mended yet: the checks that find them look away."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
"""By the check: what is wrong. An entry goes with its fix; `--known none` runs without any."""
