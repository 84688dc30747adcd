"""Where in a collection an answer stands, in words for people: its sentence and its document."""

from __future__ import annotations

import re

from qa_service.client import Answer, Passage, Span

_SENTENCE_END = re.compile(r"[.!?…]\W{0,4}?\s+|\n\s*\n|[\u3002\uff01\uff1f]")
MARK = "**{}**"


def describe_source(span: Span) -> list[str]:
    """The sentence with the answer marked, and its source, a line each; none without a passage."""
    if span.passage is None or span.start is None or span.end is None:
        return []
    return [_sentence(span.passage, span.start, span.end), _source(span.passage, span.start)]


def _sentence(passage: Passage, start: int, end: int) -> str:
    text, first, last = passage.text, start - passage.start, end - passage.start
    begin, stop = 0, len(text)
    for found in _SENTENCE_END.finditer(text):
        if found.end() <= first:
            begin = found.end()
        elif found.start() >= last - 1:
            stop = found.end()
            break
    marked = text[begin:first] + MARK.format(text[first:last]) + text[last:stop]
    return " ".join(marked.split())


def _source(passage: Passage, start: int) -> str:
    parts = [passage.title, *([passage.heading] if passage.heading else [])]
    document = f"{passage.document}:{passage.line}" if passage.line else passage.document
    return f"{document}, character {start}: {' > '.join(parts)}"


def describe_passages(answer: Answer) -> list[str]:
    """The passages that were read, if the reply has them, with their places; lines for people."""
    if not answer.passages:
        return []
    count = len(answer.passages)
    which = f"the {count} passages" if count > 1 else "the passage"
    lines = [f"not found in {which} read:"] if not answer.known else [f"{which} read:"]
    for number, passage in enumerate(answer.passages, start=1):
        lines.append(f"{number}. {_source(passage, passage.start)}")
        lines += [f"   {line}" for line in passage.text.splitlines() if line.strip()]
    return lines
