"""LineEditor: lines from a terminal, with arrow keys, pastes and a history per prompt.

With GNU readline a paste is one entry however many lines it has (the terminal brackets it,
so its line breaks are not taken for Enter). Where there is no readline, or no terminal,
an entry is a line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

try:
    import readline
except ImportError:  # Not on every platform.
    _HAS_READLINE = False
else:
    _HAS_READLINE = True

HISTORY_LENGTH = 500
"""Entries kept for each prompt."""


def history_path() -> Path:
    """Where histories are kept, by the XDG Base Directory Specification."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "qa_client" / "history.json"


class LineEditor:
    """Reads entries at named prompts; each prompt recalls its own earlier entries.

    Args:
        history_file: Where entries are kept from one run to the next; None forgets them.
    """

    def __init__(self, history_file: Path | None = None) -> None:
        self._history_file = history_file
        self._histories = _load(history_file) if history_file else {}
        self._is_terminal = sys.stdin.isatty()
        if _HAS_READLINE and self._is_terminal:
            readline.set_auto_history(False)
            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, name: str) -> str:
        """Reads an entry at the prompt of that name.

        Nothing is prompted for where the input is not a terminal, so that the output of
        a pipe holds answers only.

        Raises:
            EOFError: Ctrl-D, or the input's end.
        """
        history = self._histories.setdefault(name, [])
        if _HAS_READLINE and self._is_terminal:
            readline.clear_history()
            for earlier in history:
                readline.add_history(earlier)
        entry = input(f"{name}: " if self._is_terminal else "")
        if entry.strip() and entry not in history[-1:]:
            history.append(entry)
        return entry

    def save(self) -> None:
        """Writes the histories, for the user's eyes only, if they are to be kept.

        Raises:
            OSError: They cannot be written.
        """
        if self._history_file is None:
            return
        recent = {name: entries[-HISTORY_LENGTH:] for name, entries in self._histories.items()}
        self._history_file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._history_file.with_suffix(f".{os.getpid()}.tmp")
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(recent), encoding="utf-8")
        unfinished.replace(self._history_file)


def _load(path: Path) -> dict[str, list[str]]:
    """The histories kept in a file; none if it cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): list(map(str, entries)) for name, entries in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
