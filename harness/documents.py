"""The command lines that the documents show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

EARLIER = "These commands are those of commit "
_BLOCK = re.compile(r"^```(?:bash|sh)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"(?:\$ )?((?:\w+=\S* )*(?:(?:\S*/)?python |qa-\w|curl ).*)")
_INLINE = re.compile(r"`((?:\S*/)?(?:python|qa-\w+) [^`]+)`")
_ASSIGNMENT = re.compile(r"\w+=\S*")


def shown_commands(page: Path) -> list[list[str]]:
    """The words of each command of a page that calls a program of ours, or curl.

    Sections whose commands are those of an earlier commit are left out; they say so.
    """
    sections = re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)
    text = "".join(section for section in sections if EARLIER not in section)
    blocks = [line for block in _BLOCK.findall(text) for line in _lines(block)]
    outside = _BLOCK.sub("", text)
    return [words for line in [*blocks, *_INLINE.findall(outside)] for words in _split(line)]


def _lines(block: str) -> Iterator[str]:
    """The commands of a block; one goes on behind a backslash and within quotes."""
    lines = iter(block.splitlines())
    for line in lines:
        if found := _LINE.fullmatch(line):
            command = found[1]
            while command.endswith("\\") or command.count("'") % 2:
                command = command.removesuffix("\\") + "\n" + next(lines)
            yield command


def _split(line: str) -> Iterator[list[str]]:
    words = shlex.split(line, comments=True)
    while words:
        end = next((i for i, word in enumerate(words) if word in {"&&", "&", "|"}), len(words))
        command, words = words[:end], words[end + 1 :]
        while command and _ASSIGNMENT.fullmatch(command[0]):
            del command[0]
        if command:
            yield command
