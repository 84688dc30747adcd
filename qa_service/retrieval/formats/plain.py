"""Plain text: paragraphs as they are, with an empty line between them."""

from __future__ import annotations

import re

from qa_service.retrieval.blocks import Block, Kind, Parsed, without_invisible
from qa_service.retrieval.formats.front_matter import split_front_matter

_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def parse_plain(text: str, whole: str | None) -> Parsed:
    """Cuts a text at its empty lines; lines stay lines."""
    title, body, line = split_front_matter(text)
    blocks, start = list[Block](), 0
    for gap in (*_EMPTY_LINES.finditer(body), None):
        end = gap.start() if gap else len(body)
        words = without_invisible(body[start:end]).strip("\n").rstrip()
        if words.strip():
            first = line + body.startswith("\n", start)
            blocks.append(Block(Kind.PARAGRAPH, words, first))
        if gap:
            line += body.count("\n", start, gap.end())
            start = gap.end()
    return Parsed(blocks, title)
