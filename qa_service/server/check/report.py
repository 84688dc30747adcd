"""What `--check` has found: findings by part, as lines or as JSON, and the exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum, auto

import msgspec

from qa_service.errors import SetupError
from qa_service.logs import KeptWarnings, plural


class Level(StrEnum):
    OK = auto()
    WARNING = auto()
    ERROR = auto()
    """The server would not start."""


class Finding(msgspec.Struct, frozen=True):
    """A line of the report.

    Attributes:
        remedy: What a person can do about it; empty for nothing.
    """

    level: Level
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    return Finding(Level.OK, text)


def warning(text: str, remedy: str = "") -> Finding:
    return Finding(Level.WARNING, text, remedy)


def error(text: str, remedy: str = "") -> Finding:
    return Finding(Level.ERROR, text, remedy)


class CheckReport:
    """The findings so far.

    Args:
        say: Takes each line of the text as soon as it is known.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.parts: dict[str, list[Finding]] = {}
        self._say = say

    def add(self, part: str, findings: Iterable[Finding]) -> None:
        """Takes findings of a part; an exception or a logged warning is one more."""
        if part not in self.parts:
            self._say(part)
        found = self.parts.setdefault(part, [])
        for finding in _complete(findings):
            if finding in found:  # steps that need the same may fail by the same
                continue
            found.append(finding)
            self._say(f"  {finding.level:9}{finding.text}")
            if finding.remedy:
                self._say(f"           {finding.remedy}")

    @property
    def exit_code(self) -> int:
        """0; 1 with warnings; 2 if the server would not start."""
        return 2 if self._count(Level.ERROR) else 1 if self._count(Level.WARNING) else 0

    def _count(self, level: Level) -> int:
        return sum(one.level is level for part in self.parts.values() for one in part)

    @property
    def verdict(self) -> str:
        errors, warnings = self._count(Level.ERROR), self._count(Level.WARNING)
        words = [plural(errors, "error")] * bool(errors)
        words += [plural(warnings, "warning")] * bool(warnings)
        start = "the server would not start" if errors else "the server would start"
        return f"{start}: {', '.join(words)}" if words else start

    def to_json(self) -> str:
        whole = {"exit_code": self.exit_code, "verdict": self.verdict, "parts": self.parts}
        return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _complete(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, what was logged as a warning meanwhile, and the error that ended them."""
    logged = KeptWarnings()
    logging.getLogger().addHandler(logged)
    try:
        for finding in findings:
            yield from map(warning, logged.take())
            yield finding
    except SetupError as caught:
        yield error(str(caught))
    except Exception as caught:
        yield error(f"this part could not be looked at: {type(caught).__name__}: {caught}")
    finally:
        logging.getLogger().removeHandler(logged)
    yield from map(warning, logged.take())
