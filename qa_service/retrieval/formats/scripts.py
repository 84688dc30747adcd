"""Raised and lowered characters in a text without them: 10^6, H2O."""

from __future__ import annotations

import re

# ruff: noqa: RUF001, signs that look like a minus are meant

_POWER = re.compile(r"[-+−–]?[\w.]{1,4}|[-+−–]?\d+(?:[.,]\d+)*")
_NO_POWER = re.compile(r"st|nd|rd|th|tm|sm|r|o|a|e|er|re|ème|me|le|lle", re.IGNORECASE)


def raised(before: str, inner: str) -> str:
    """What a superscript is written as: a power with `^`, "th" and the like as they are."""
    words = inner.strip()
    is_power = before[-1:].isalnum() or before[-1:] in {")", "]"}
    if is_power and _POWER.fullmatch(words) and not _NO_POWER.fullmatch(words):
        return f"^{words}"
    return inner


def lowered(before: str, inner: str) -> str:
    """What a subscript is written as: apart from a number before it, as it is."""
    words = inner.strip()
    return f"_{words}" if before[-1:].isdigit() and words[:1].isalnum() else inner
