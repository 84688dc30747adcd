"""LineEditor: entries from a terminal, with arrow keys, pastes and a history per prompt.

A paste is one entry, however many lines it has. With GNU readline the terminal brackets a paste, so
its line breaks are not Enter; elsewhere, a line that is there at once after a line break belongs to
the same entry. Without a terminal, an entry is a line.
"""

from __future__ import annotations

import select
import sys

try:
    import readline
except ImportError:  # missing on some platforms
    _HAS_READLINE = False
else:
    _HAS_READLINE = True
try:
    import termios
    import tty
except ImportError:  # missing on Windows
    _HAS_TERMIOS = False
else:
    _HAS_TERMIOS = True

_PASTE_PAUSE_S = 0.02
"""Longest pause within a paste; nobody types a key so soon after Enter."""


class LineEditor:
    """Reads entries at named prompts; each prompt recalls its earlier entries."""

    def __init__(self) -> None:
        self._histories: dict[str, list[str]] = {}
        self.is_terminal = sys.stdin.isatty()
        if _HAS_READLINE and self.is_terminal:
            readline.set_auto_history(False)
            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, name: str) -> str:
        """Reads an entry at the prompt of that name; Ctrl-C clears a half-typed one.

        Without a terminal there is no prompt, so that the output of a pipe holds only answers.

        Raises:
            EOFError: Ctrl-D, or the input's end.
            KeyboardInterrupt: Ctrl-C with nothing typed.
        """
        if not self.is_terminal:
            return input()
        entry = None
        while entry is None:
            entry = self._read_typed(name)
        history = self._histories.setdefault(name, [])
        if entry.strip() and entry not in history[-1:]:
            history.append(entry)
        return entry

    def _read_typed(self, name: str) -> str | None:
        """Reads an entry; None if it was cleared."""
        if _HAS_READLINE:
            readline.clear_history()
            for earlier in self._histories.get(name, []):
                readline.add_history(earlier)
        try:
            lines = [input(f"{name}: ")]
            while _is_more_there():
                lines.append(input())
        except KeyboardInterrupt:
            if not (_HAS_READLINE and readline.get_line_buffer()):
                raise
            print()
            return None
        return "\n".join(lines)


def _is_more_there() -> bool:
    """Whether more of a paste has come, at least part of a line."""
    if not _HAS_TERMIOS:
        return False
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        return bool(select.select([descriptor], [], [], _PASTE_PAUSE_S)[0])
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
