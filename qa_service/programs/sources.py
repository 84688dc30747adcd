"""Where an answer stands, in words for people: its sentence and document, and its other places."""

from __future__ import annotations

import re

from qa_service.client import Answer, Passage, Place, Span

_SENTENCE_END = re.compile(r"[.!?…]\W{0,4}?\s+|\n\s*\n|[\u3002\uff01\uff1f]")
MARK = "**{}**"


def describe_source(span: Span) -> list[str]:
    """Of a collection, the sentence with the answer marked and its source; then other places."""
    if span.start is None or span.end is None:
        return []
    own = (span.start, span.passage.document if span.passage else "")
    others = [place for place in span.places if (place.start, place.document) != own]
    lines = [f"also at {', '.join(map(_place, others))}"] if others else []
    if span.passage is None:
        return lines
    source = _source(span.passage, span.start)
    return [_sentence(span.passage, span.start, span.end), source, *lines]


def _place(place: Place) -> str:
    words = f"character {place.start}"
    return f"{place.document}, {words}" if place.document else words


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
