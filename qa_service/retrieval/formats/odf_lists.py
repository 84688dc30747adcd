"""The numbers of OpenDocument's lists and headings, as LibreOffice shows them.

Format: OpenDocument 1.3, part 3, 16.31 to 16.34 (styles of lists and of the outline), 19.880.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as Xml

from qa_service.retrieval.formats.office_package import attribute, name_of, number
from qa_service.retrieval.formats.word_styles import written

OUTLINE = "outline-style"
"""What headings that are in no list are numbered by."""
_FORMS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_MAX_LEVELS = 10


class Numbers:
    """Counts the items of lists, each style's by itself.

    Args:
        styles: Those of lists and of the outline, by name.
    """

    def __init__(self, styles: Mapping[str, Xml.Element]) -> None:
        self._levels = {
            name: {number(level, "level") or 1: level for level in style}
            for name, style in styles.items()
        }
        self._counts = dict[str, dict[int, int]]()

    def begin(self, style: str) -> None:
        """A list begins that does not go on with the last of its style."""
        self._counts.pop(style, None)

    def next_mark(self, style: str, level: int, start: int | None = None) -> str:
        """The mark of the next item: its number, "-" for a bullet, "" if it has none.

        Args:
            level: How many lists it is in.
            start: Its number, if it says so.
        """
        levels = self._levels.get(style, {})
        its = levels.get(level)
        if its is None or name_of(its) == "list-level-style-bullet":
            return "-"
        counts = self._counts.setdefault(style, {})
        for place in range(1, min(level, _MAX_LEVELS) + 1):
            first = number(levels.get(place), "start-value")
            first = 1 if first is None else first
            if place < level:
                counts.setdefault(place, first)
            else:
                counts[place] = counts.get(place, first - 1) + 1 if start is None else start
        for place in [place for place in counts if place > level]:
            del counts[place]
        shown = number(its, "display-levels") or 1
        parts = [
            written(counts[place], _FORMS.get(form, "decimal"))
            for place in range(max(1, level - shown + 1), level + 1)
            if place in counts and (form := attribute(levels.get(place), "num-format"))
        ]
        if not attribute(its, "num-format"):
            return ""
        return (
            f"{attribute(its, 'num-prefix')}{'.'.join(parts)}{attribute(its, 'num-suffix')}".strip()
        )
