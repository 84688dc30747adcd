"""What may be an answer: the same rule for every model and every engine.

No answer is: the marks of a heading or a list alone; an article alone; words that are all the
question's, in a heading or a sentence that repeats it; what goes on past the end of a paragraph. In
prose, a word of the question may be the answer ("red or blue?"), but not a name of code (`top_k`,
`--dry-run`).

What goes on past a list's item or a table's cell is cut there: where an answer begins is surer than
where it ends. Of `Column: value` the value is the answer. If another span stays within its own, it
is that one that counts.

The best spans are looked at one by one. Only if the best of all is none is the whole table masked,
so that the spans that are left share the probability.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Set

import numpy as np
import numpy.typing as npt

from qa_service.instance.arrays import Int64Array

_MIN_REPEATED = 0.7
"""A sentence with this share of its words from the question repeats it."""
_MAX_HEADING_WORDS = 12
_ARTICLES = frozenset(("a", "an", "the"))
_WORD = re.compile(r"[^\W_]+")
_NEUTRAL = re.compile(
    r"""(?=[^\w\s])(?:["'“”\u2018\u2019«»()\[\]{}|`]+|(?<=\w)[^\w\s](?=\w)
      |(?<=[\w)\]"'”\u2019*])[.,;:!?…]+(?=[\s)\]"'”\u2019*]|\Z))""",
    re.VERBOSE,
)
"""Signs that are no answer by themselves; `@` among spaces is one. Here and below, the first
lookahead only passes other characters quickly."""
_LINE_MARKS = re.compile(
    r"""^[ \t>]*(?:\#{1,6}(?=\s)|[-*+•‣◦](?=\s)|\d{1,3}[.)-](?=\s)|[=~^_*\#-]{3,}[ \t]*$)
      |^[ \t>*_\#]*(?:Q|A|Question|Answer)\d*[:.)](?=[\s*_])""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
"""Marks of headings and lists, rules, and the labels of questions and answers."""
_INNER_MARKS = re.compile(r"(?=[*_:-])(?:\*\*|__|:?-{3,}:?)")
"""Marks of emphasis and of tables."""
_ARTICLE = re.compile(r"(?<!\S)(?:an?|the)(?=\s+\w)")
"""One that belongs to what follows it; `"a"` may be a letter."""
_MAY_BE_MARK = re.compile(r"\d{1,3}|(?:q|a|question|answer)\d*")
"""The first word of a mark that has any, at a line's start."""
_PARAGRAPH_END = re.compile(r"\n(?=[ \t]*\n|[=~^-]{3,}[ \t]*$|[ \t]*\#{1,6}[ \t])", re.MULTILINE)
"""A blank line, a heading's underline, and the start of a heading."""
_ITEM_END = re.compile(r"\n(?=[ \t]*(?:[-*+•‣◦]|\d{1,3}[.)-])[ \t])")
_LINE = re.compile(r"[^\n]+")
_PIPE_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*")
_ROW = re.compile(r"[ \t]*[^\W_][^:;\n]{0,60}: .*?; [^\W_][^:;\n]{0,60}: .*")
"""A row as documents are rendered: `Column: value; Column: value`."""
_COLUMN = re.compile(r"(?:^[ \t]*|(?<=; ))[^\W_][^:;\n]{0,60}: ", re.MULTILINE)
_HEADING_END = re.compile(r"^[ \t]*\#{1,6}[ \t].*\n", re.MULTILINE)
_MAY_LEAVE = re.compile(r"[\n|;:]")
_NAME = re.compile(r"(?<!\S)-*\w+(?:[_.-]\w+)+(?![\w/])")
"""A name of code: it has a sign between its parts."""
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?=\S)[^.!?\n]*)*[.!?]?")
_NEWLINE = re.compile(r"\n")
_TO_NEXT_WORD = re.compile(r"\S*\s*\S?")


_Cells = tuple[list[int], list[tuple[int, int]]]
"""Where the cells of a line begin and end, and where its columns' names and values begin."""


class AnswerRule:
    """What may be an answer to one question in one text.

    Attributes:
        asked: The question's words, in lower case.
    """

    def __init__(self, question: str, text: str) -> None:
        self.asked = frozenset(map(str.lower, _WORD.findall(question)))
        self._known = self.asked | _ARTICLES
        self._repeats: dict[int, list[tuple[int, int]]] = {}
        self._cells: dict[int, _Cells] = {}
        self._question = question
        self._text = text

    def allows(self, start: int, end: int) -> bool:
        """Whether a span, in code points, may be an answer."""
        text = self._text
        if text.find("\n", start, end) >= 0 and any(
            start < place < end for place in self._paragraph_ends(start, end)
        ):
            return False
        if first := _WORD.match(text, start, end):
            word = first[0].lower()
            if word not in self._known and not _MAY_BE_MARK.fullmatch(word):
                return True
        words = [word.lower() for word in _WORD.findall(text, start, end)]
        is_new = not self._known.issuperset(words)
        if is_new and not (_MAY_BE_MARK.fullmatch(words[0]) and _begins_line(text, start)):
            return True
        return bool(self._worth(start, end).any())

    def table(self, offsets: Int64Array, max_tokens: int) -> npt.NDArray[np.bool_]:
        """Whether the span of n + 1 tokens from token i may be one: [text tokens, max_tokens]."""
        starts, positions = offsets[:, 0], np.arange(len(offsets))
        sums = np.append(0, np.cumsum(self._worth(0, len(self._text))))
        next_worth = np.where(sums[offsets[:, 1]] == sums[starts], len(offsets), positions)
        shortest = 1 + np.minimum.accumulate(next_worth[::-1])[::-1] - positions
        ends = self._paragraph_ends(0, len(self._text))
        next_end = np.append(ends, len(self._text) + 1)[np.searchsorted(ends, starts, side="right")]
        longest = np.searchsorted(starts, next_end) - positions
        lengths = np.arange(1, max_tokens + 1)
        may_be: npt.NDArray[np.bool_] = (lengths >= shortest[:, None]) & (
            lengths <= longest[:, None]
        )
        return may_be

    def within_cell(self, start: int, end: int) -> tuple[int, int]:
        """Cuts a span to the item or cell that it begins in, without the cell's column."""
        text = self._text
        if not _MAY_LEAVE.search(text, start, end):
            return start, end
        lines = _lines_around(text, start, end)
        ends = [end, *(item.start() for item in _ITEM_END.finditer(text, *lines))]
        for line in _LINE.finditer(text, *lines):
            if line.start() not in self._cells:
                self._cells[line.start()] = _cells(line)
            of_line, columns = self._cells[line.start()]
            ends += of_line
            for name, value in columns:
                if name <= start < value < end:
                    start = value
        return start, min(place for place in ends if place > start)

    def _paragraph_ends(self, start: int, end: int) -> list[int]:
        """Where paragraphs end in the lines of a span, in order."""
        lines = _lines_around(self._text, start, end)
        patterns = (_PARAGRAPH_END, _HEADING_END)
        return sorted(m.end() for pattern in patterns for m in pattern.finditer(self._text, *lines))

    @functools.cached_property
    def _names(self) -> Set[str]:
        """The names of code in the question, unless it asks which of them."""
        return frozenset(() if "or" in self.asked else _NAME.findall(self._question))

    def _worth(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Of each character of a span whether it is an answer, alone or among its like."""
        worth = np.frombuffer(self._text[start:end].encode("utf-32-le"), np.uint32) > ord(" ")
        for first, last in self._worthless_ranges(start, end):
            if first < end and last > start:
                worth[max(first, start) - start : last - start] = False
        return worth

    def _worthless_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges without worth, all that touch a span among them.

        Only the text around the span is searched, since most texts are long and most spans short:
        no sign, article or name has white space in it, and marks and sentences end with a line.
        """
        text = self._text
        around, stop = text.rfind(" ", 0, start) + 1, next(_TO_NEXT_WORD.finditer(text, end)).end()
        for pattern in (_NEUTRAL, _INNER_MARKS, _ARTICLE):
            for match in pattern.finditer(text, around, stop):
                yield match.span()
        line = text.rfind("\n", 0, start) + 1
        for begin in (line, *(newline.end() for newline in _NEWLINE.finditer(text, line, end))):
            if marks := _LINE_MARKS.match(text, begin):
                yield marks.span()
        for sentence in _SENTENCE.finditer(text, line):
            if sentence.start() >= end:
                break
            if sentence.end() > start:
                if (begin := sentence.start()) not in self._repeats:
                    self._repeats[begin] = list(_repeated(sentence, self.asked))
                yield from self._repeats[begin]
        for name in _NAME.finditer(text, around, stop) if self._names else ():
            if name[0] in self._names:
                yield name.span()


def _lines_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the lines begin and end that have a part of a span."""
    return text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1 or len(text)


def _cells(line: re.Match[str]) -> _Cells:
    text, (begin, end) = line.string, line.span()
    if _PIPE_ROW.fullmatch(text, begin, end):
        return [*(at for at in range(begin, end) if text[at] == "|"), end], []
    if not _ROW.fullmatch(text, begin, end):
        return [], []
    columns = [column.span() for column in _COLUMN.finditer(text, begin, end)]
    return [begin, *(name for name, _ in columns), end], columns


def _begins_line(text: str, start: int) -> bool:
    return not text[text.rfind("\n", 0, start) + 1 : start].strip(" \t>*_#")


def _repeated(sentence: re.Match[str], asked: Set[str]) -> Iterator[tuple[int, int]]:
    """The question's words in a sentence, if it repeats the question or is a heading."""
    words = [word.lower() for word in _WORD.findall(sentence[0])]
    known = [word for word in words if word in asked]
    if not known or ("or" in asked and "or" not in known):
        return
    known += [word for word in words if word in _ARTICLES]
    is_sentence = sentence[0][-1] in ".!" or len(words) > _MAX_HEADING_WORDS
    if is_sentence and len(known) < _MIN_REPEATED * len(words):
        return  # prose
    for word in _WORD.finditer(sentence.string, *sentence.span()):
        if word[0].lower() in known:
            yield word.span()
