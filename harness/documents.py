"""What the documents show: commands and what they print, frames and their replies, programs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.server import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

MORE = "…"
_FRAMES = re.compile(r"^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```(?:bash|sh)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"(?:\$ )?((?:\w+=\S* )*(?:(?:\S*/)?python |qa-\w|curl ).*)")
_INLINE = re.compile(r"`((?:\S*/)?(?:python|qa-\w+) [^`]+)`")
_DATE = re.compile(r"^Date: .*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=\S*")


def shown_commands(page: Path) -> list[list[str]]:
    """The words of each command of a page that calls a program of ours, or curl."""
    return [words for words, _ in shown_outputs(page)]


def shown_outputs(page: Path) -> list[tuple[list[str], str]]:
    """The same with what each command prints; empty where the page does not show that."""
    text = page.read_text()
    blocks = [shown for block in _BLOCK.findall(text) for shown in _lines(block)]
    outside = [(line, "") for line in _INLINE.findall(_BLOCK.sub("", text))]
    return [(words, output) for line, output in [*blocks, *outside] for words in _split(line)]


def _lines(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, with what follows each up to the next.

    A command goes on behind a backslash and within quotes.
    """
    for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
        lines = iter(part.splitlines())
        for line in lines:
            if found := _LINE.fullmatch(line):
                command = found[1]
                while command.endswith("\\") or command.count("'") % 2:
                    command = command.removesuffix("\\") + "\n" + next(lines)
                yield command, "\n".join(lines).strip() if part.startswith("$ ") else ""


def _split(line: str) -> Iterator[list[str]]:
    words = shlex.split(line, comments=True)
    while words:
        end = next((i for i, word in enumerate(words) if word in {"&&", "&", "|"}), len(words))
        command, words = words[:end], words[end + 1 :]
        while command and _ASSIGNMENT.fullmatch(command[0]):
            del command[0]
        if command:
            yield command


def shown_programs(page: Path) -> list[str]:
    """The Python of a page."""
    return _PROGRAM.findall(page.read_text())


def shown_frames(page: Path) -> list[list[object]]:
    """The frames of each block of JSON: a message to the server, its reply, and so on."""
    return [_values(block) for block in _FRAMES.findall(page.read_text())]


def exchanges(frames: list) -> Iterator[tuple[list, object]]:
    """A block's messages, each with its reply; a cancel frame goes with the message before it."""
    left = iter(frames)
    for sent in left:
        reply = next(left)
        if reply.get("type") == "cancel":
            yield [sent, reply], next(left)
        else:
            yield [sent], reply


def _values(text: str) -> list[object]:
    """The JSON values in a text, in which `…` stands for more members of an object or an array."""
    text = re.sub(f"{MORE}}}", f'"{MORE}": null}}', text)
    text, values = re.sub(f"{MORE}]", f'"{MORE}"]', text).strip(), []
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


def check_output(shown: str, printed: str) -> None:
    """Checks the shape of what a command prints: HTTP's head, JSON, or words and numbers."""
    parts = (shown.strip(), printed.replace("\r", "").strip())
    if shown.startswith("HTTP/"):
        (head, body), (its_head, its_body) = (part.split("\n\n", 1) for part in parts)
        heads, parts = (head, its_head), (body, its_body)
        status, *fields = (sorted(_without_numbers(head).splitlines()) for head in heads)
        assert [status] == fields
        assert heads[0].splitlines()[0] == heads[1].splitlines()[0]
    if parts[0].startswith(("{", "[")):
        check_shape(_values(parts[0]), _values(parts[1]))
    else:
        assert _without_numbers(parts[1]) == _without_numbers(parts[0])


def _without_numbers(words: str) -> str:
    words = _DATE.sub("Date:", words)
    return re.sub(r" +", " ", re.sub(r"\d+(\.\d+)?", "0", words))


def check_shape(shown: Any, real: Any, at: str = "") -> None:
    """Checks that a reply has the keys and the types that are shown, whatever the values."""
    assert _kind(shown) is _kind(real), f"{at}: {shown!r} is shown, and {real!r} is said"
    if isinstance(shown, dict):
        keys, others = {*shown} - {MORE}, {*real} - {*shown}
        assert keys <= {*real}, f"{at}: {keys - {*real}} shown alone"
        assert MORE in shown or not others, f"{at}: {others} not shown"
        for key in keys:
            check_shape(shown[key], real[key], f"{at}.{key}")
    elif isinstance(shown, list):
        shown = [value for value in shown if value != MORE]
        assert bool(shown) == bool(real), f"{at}: {shown} is shown, and {real} is said"
        for number, value in enumerate(real):
            check_shape(shown[min(number, len(shown) - 1)], value, f"{at}[{number}]")


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)
