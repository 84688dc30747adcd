"""Cuts a document into passages.

    text     |-- heading --|-----------------|-------|------------ heading --|------|
    passages |=======================|
                              |==============================|
                                                             |======================|

A passage is whole sentences of about `passage_tokens`. It repeats the last sentence of the one
before it in its section, unless that sentence is long. A heading ends a passage that is half full,
an empty line one that is two thirds full. What is left of a section joins the passage before it if
it is less than a third of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from qa_service.retrieval.documents import Document, shortened
from qa_service.retrieval.sentences import MAX_CHARS_PER_TOKEN, Sentence, sentences

PASSAGE_TOKENS = 150  # about a paragraph of SQuAD, on which readers are trained


class Passage(msgspec.Struct, frozen=True):
    """A part of a document: `text[start:end]`.

    Attributes:
        heading: The headings above its start, the highest first.
    """

    start: int
    end: int
    heading: str = ""


class _Section(msgspec.Struct, frozen=True):
    start: int
    end: int
    heading: str


def cut(document: Document, passage_tokens: int = PASSAGE_TOKENS) -> Iterator[Passage]:
    """Yields a document's passages in its order; together they hold all but white space.

    A passage has about `passage_tokens`; none has more than 4/3 of it, nor 11 times as many
    characters.
    """
    cutter = _Cutter(passage_tokens)
    for section in _sections(document):
        yield from cutter.begin(section.heading)
        for sentence in sentences(document.text, section.start, section.end, passage_tokens):
            yield from cutter.add(sentence)
    yield from cutter.end()


def _sections(document: Document) -> Iterator[_Section]:
    start, path = 0, dict[int, str]()
    for heading in document.headings:
        yield _Section(start, heading.start, _joined(path))
        path = {level: text for level, text in path.items() if level < heading.level}
        path[heading.level] = heading.text
        start = heading.start
    yield _Section(start, len(document.text), _joined(path))


def _joined(path: dict[int, str]) -> str:
    return shortened(" > ".join(path.values()))


class _Cutter:
    """Collects sentences; holds back one passage, which what is left may join."""

    def __init__(self, passage_tokens: int) -> None:
        self._limit = passage_tokens
        self._max_chars = passage_tokens * MAX_CHARS_PER_TOKEN
        self._heading = ""
        self._held: list[Sentence] = []
        self._repeated = 0
        """How many of the held sentences the passage before has too."""
        self._before: Passage | None = None
        """The passage before in this section, not yet given out."""

    @property
    def _tokens(self) -> int:
        return sum(sentence.tokens for sentence in self._held)

    def begin(self, heading: str) -> Iterator[Passage]:
        """A section begins; what is held of short ones goes on into it."""
        if self._before is not None or 2 * self._tokens >= self._limit:
            yield from self.end()
        if not self._held:
            self._heading = heading

    def add(self, sentence: Sentence) -> Iterator[Passage]:
        """Takes the next sentence; yields a passage that ended before it."""
        tokens = self._tokens
        is_full = tokens + sentence.tokens > self._limit
        is_full |= sentence.is_first and 3 * tokens >= 2 * self._limit
        is_full |= self._is_too_wide(sentence)
        if is_full and len(self._held) > self._repeated:
            yield from self._close()
        is_too_much = self._tokens + sentence.tokens > self._limit or self._is_too_wide(sentence)
        if self._repeated and is_too_much:
            self._held, self._repeated = [], 0
        self._held.append(sentence)

    def end(self) -> Iterator[Passage]:
        """The section ends: gives out what there is."""
        new = self._held[self._repeated :]
        end = new[-1].end if new else 0
        is_little = 3 * sum(sentence.tokens for sentence in new) < self._limit
        if self._before and is_little and 3 * (end - self._before.end) < self._max_chars:
            end = max(end, self._before.end)
            yield Passage(self._before.start, end, self._before.heading)
        else:
            if self._before:
                yield self._before
            if new:
                yield self._passage()
        self._before, self._held, self._repeated = None, [], 0

    def _is_too_wide(self, sentence: Sentence) -> bool:
        """Whether white space makes a passage long that has few tokens."""
        return bool(self._held) and sentence.end - self._held[0].start > self._max_chars

    def _close(self) -> Iterator[Passage]:
        if self._before:
            yield self._before
        self._before = self._passage()
        last = self._held[-1]
        self._held = [last] if 3 * last.tokens <= self._limit else []
        self._repeated = len(self._held)

    def _passage(self) -> Passage:
        return Passage(self._held[0].start, self._held[-1].end, self._heading)
