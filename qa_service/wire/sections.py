"""Where a long text is cut: found from question, text and window alone. Sans-IO.

    text   |-------------------------------------------------------|
    cores  |===============|================|======================|
    section|-------------------|
                       |------------------------|
                                        |--------------------------|

Each span belongs to the section in whose core it starts; the characters around a core are context.
So each span counts once, and the sums of all sections are the sum over the text.

The loop, which has no tokenizer, cuts texts for the queue here, and the reader cuts texts that come
whole. A section is tokenized apart from its neighbours, so the model sees the same windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from qa_service.wire.messages import Question

CORE_TOKENS = 512
MIN_WINDOWS = 2
"""The usual size of a core in tokens, and its minimum in windows: a longer section holds up other
requests for longer, and a shorter one is mostly its neighbours' context, read twice."""
BYTES_PER_TOKEN = 4
"""Bytes of UTF-8. English has about five, so that sections rather have too few tokens."""

_SPECIAL_TOKENS = 4  # RoBERTa's; BERT's pairs have three
_MAX_CHARS_PER_TOKEN = 8  # as in PIECES; a text of white space has no pieces
_WORD_CHARS = 64  # what is longer is no word, and may be cut

PIECES = re.compile(r"[^\W\u2e80-\U0010ffff]{1,8}|\S")
"""About a token each: up to eight letters, a sign, an ideograph."""


class Section(msgspec.Struct, frozen=True):
    """A part of a text, in code points; both ends are exclusive."""

    start: int
    core_start: int
    core_end: int
    end: int

    @property
    def core(self) -> tuple[int, int]:
        return self.core_start - self.start, self.core_end - self.start


def sections(asked: Question, window_tokens: int, overlap_tokens: int) -> Iterator[Section]:
    """Cuts a text, as it is asked for: into one section, or several of a few windows each.

    Args:
        overlap_tokens: Tokens that two neighbouring windows share.
    """
    text = asked.text
    room = max(2, window_tokens - _SPECIAL_TOKENS)
    room -= min(len(asked.question.encode()) // BYTES_PER_TOKEN, room // 2)
    overlap = min(overlap_tokens, room // 2)
    step = room - overlap
    core_tokens = step * max(MIN_WINDOWS, CORE_TOKENS // step)
    if _is_short(text, core_tokens + overlap):
        yield Section(0, 0, len(text), len(text))
        return
    core_end = 0
    while core_end < len(text):
        section = _next_section(text, core_end, core_tokens, overlap)
        core_end = section.core_end
        yield section


def is_one_section(asked: Question, window_tokens: int, overlap_tokens: int) -> bool:
    """Whether `sections` leaves a text whole."""
    if _is_short(asked.text, CORE_TOKENS // 2):  # for every window, a core has more tokens
        return True
    return next(sections(asked, window_tokens, overlap_tokens)).core_end == len(asked.text)


def _is_short(text: str, tokens: int) -> bool:
    """Whether a text has at most this many tokens, by its bytes."""
    limit = BYTES_PER_TOKEN * tokens
    if text.isascii() or len(text) > limit:
        return len(text) <= limit
    return len(text.encode()) <= limit


def _next_section(text: str, core_start: int, core_tokens: int, overlap: int) -> Section:
    sample = text[core_start : core_start + core_tokens * BYTES_PER_TOKEN]
    chars_per_token = len(sample) / max(1, len(PIECES.findall(sample)))
    chars_per_token = min(chars_per_token, _MAX_CHARS_PER_TOKEN)
    context_chars = int(overlap * chars_per_token / 2)
    start = _at_space(text, core_start - context_chars, 0)
    core_end = _at_space(text, core_start + int(core_tokens * chars_per_token), core_start)
    end = _at_space(text, core_end + context_chars, core_end)
    if end == len(text):
        core_end = end
    return Section(start, core_start, core_end, end)


def _at_space(text: str, position: int, floor: int) -> int:
    """The nearest place before a position where a word begins, but above a floor.

    A stretch without white space is cut where it is.
    """
    if position <= floor:
        return floor
    if position >= len(text):
        return len(text)
    for place in range(position, max(floor, position - _WORD_CHARS), -1):
        if text[place - 1].isspace():
            return place
    return position
