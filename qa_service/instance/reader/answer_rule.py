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

import bisect
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
    r"""["'“”\u2018\u2019«»()\[\]{}|`]+|(?<=\w)[^\w\s](?=\w)
      |(?<=[\w)\]"'”\u2019*])[.,;:!?…]+(?=[\s)\]"'”\u2019*]|\Z)""",
    re.VERBOSE,
)
"""Signs that are no answer by themselves; `@` among spaces is one."""
_LINE_MARKS = re.compile(
    r"""^[ \t>]*(?:\#{1,6}(?=\s)|[-*+•‣◦](?=\s)|\d{1,3}[.)-](?=\s)|[=~^_*\#-]{3,}[ \t]*$)
      |^[ \t>*_\#]*(?:Q|A|Question|Answer)\d*[:.)](?=[\s*_])""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
"""Marks of headings and lists, rules, and the labels of questions and answers."""
_INNER_MARKS = re.compile(r"\*\*|__|:?-{3,}:?")
"""Marks of emphasis and of tables."""
_ARTICLE = re.compile(r"(?<!\S)(?:an?|the)(?=\s+\w)")
"""One that belongs to what follows it; `"a"` may be a letter."""
_MAY_BE_MARK = re.compile(r"\d{1,3}|(?:q|a|question|answer)\d*")
"""The first word of a mark that has any, at a line's start."""
_PARAGRAPH_END = re.compile(
    r"\n(?=[ \t]*\n)|(?<=\n)(?=[=~^-]{3,}[ \t]*$)|(?<=\n)(?=[ \t]*\#{1,6}[ \t])", re.MULTILINE
)
"""A blank line, a heading's underline, and the start of a heading."""
_ITEM_END = re.compile(r"\n(?=[ \t]*(?:[-*+•‣◦]|\d{1,3}[.)-])[ \t])")
_PIPE_ROW = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)
_ROW = re.compile(
    r"^[ \t]*[^\W_][^:;\n]{0,60}: [^\n]*?; [^\W_][^:;\n]{0,60}: [^\n]*$", re.MULTILINE
)
"""A row as documents are rendered: `Column: value; Column: value`."""
_COLUMN = re.compile(r"(?:^[ \t]*|(?<=; ))[^\W_][^:;\n]{0,60}: ", re.MULTILINE)
_HEADING_END = re.compile(r"^[ \t]*\#{1,6}[ \t].*\n", re.MULTILINE)
_MAY_LEAVE = re.compile(r"[\n|;:]")
_NAME = re.compile(r"(?<!\S)-*\w+(?:[_.-]\w+)+(?![\w/])")
"""A name of code: it has a sign between its parts."""
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?=\S)[^.!?\n]*)*[.!?]?")
_NEWLINE = re.compile(r"\n")
_TO_NEXT_WORD = re.compile(r"\S*\s*\S?")


class _QuestionWords:
    """The words of a question, in lower case; it is cut only if it has the letters of one in it.

    Case folding, unlike lower case, makes the same of a letter whatever is around it.
    """

    def __init__(self, question: str) -> None:
        self._question = question
        self._folded = question.casefold()

    def __contains__(self, word: object) -> bool:
        return str(word).casefold() in self._folded and word in self.words

    @functools.cached_property
    def words(self) -> Set[str]:
        return frozenset(map(str.lower, _WORD.findall(self._question)))


class AnswerRule:
    """What may be an answer to one question in one text.

    Attributes:
        asked: The question's words, in lower case.
    """

    def __init__(self, question: str, text: str) -> None:
        self.asked = _QuestionWords(question)
        self._repeats: dict[int, list[tuple[int, int]]] = {}
        self._question = question
        self._text = text

    def allows(self, start: int, end: int) -> bool:
        """Whether a span, in code points, may be an answer."""
        text = self._text
        if text.find("\n", start, end) >= 0 and any(start < p < end for p in self._paragraph_ends):
            return False
        if first := _WORD.match(text, start, end):
            word = first[0].lower()
            if not (word in _ARTICLES or word in self.asked or _MAY_BE_MARK.fullmatch(word)):
                return True
        words = [word.lower() for word in _WORD.findall(text, start, end)]
        is_new = not (self.asked.words | _ARTICLES) >= set(words)
        if is_new and not (_MAY_BE_MARK.fullmatch(words[0]) and _begins_line(text, start)):
            return True
        return any(self._worth(start, end))

    def table(self, offsets: Int64Array, max_tokens: int) -> npt.NDArray[np.bool_]:
        """Whether the span of n + 1 tokens from token i may be one: [text tokens, max_tokens]."""
        starts, positions = offsets[:, 0], np.arange(len(offsets))
        worth = np.frombuffer(self._worth(0, len(self._text)), np.uint8)
        sums = np.append(0, np.cumsum(worth))
        next_worth = np.where(sums[offsets[:, 1]] == sums[starts], len(offsets), positions)
        shortest = 1 + np.minimum.accumulate(next_worth[::-1])[::-1] - positions
        ends = self._paragraph_ends
        next_end = np.append(ends, len(self._text) + 1)[np.searchsorted(ends, starts, side="right")]
        longest = np.searchsorted(starts, next_end) - positions
        lengths = np.arange(1, max_tokens + 1)
        may_be: npt.NDArray[np.bool_] = (lengths >= shortest[:, None]) & (
            lengths <= longest[:, None]
        )
        return may_be

    def within_cell(self, start: int, end: int) -> tuple[int, int]:
        """Cuts a span to the item or cell that it begins in, without the cell's column."""
        if not _MAY_LEAVE.search(self._text, start, end):
            return start, end
        for name, value in self._columns:
            if name <= start < value < end:
                start = value
        following = bisect.bisect_right(self._cell_ends, start)
        return start, min([end, *self._cell_ends[following : following + 1]])

    @functools.cached_property
    def _paragraph_ends(self) -> list[int]:
        patterns = (_PARAGRAPH_END, _HEADING_END)
        return sorted(m.end() for pattern in patterns for m in pattern.finditer(self._text))

    @functools.cached_property
    def _cell_ends(self) -> list[int]:
        """Where items, rows and cells begin and end, in order."""
        text = self._text
        places = {item.start() for item in _ITEM_END.finditer(text)}
        for row in _PIPE_ROW.finditer(text):
            places |= {row.end(), *(at for at in range(*row.span()) if text[at] == "|")}
        places |= {place for row in _ROW.finditer(text) for place in row.span()}
        places |= {name for name, _ in self._columns}
        return sorted(places)

    @functools.cached_property
    def _columns(self) -> list[tuple[int, int]]:
        """Of the cells of rendered rows, where the column's name and where the value begins."""
        rows = (row.span() for row in _ROW.finditer(self._text))
        return [name.span() for row in rows for name in _COLUMN.finditer(self._text, *row)]

    @functools.cached_property
    def _names(self) -> Set[str]:
        """The names of code in the question, unless it asks which of them."""
        return frozenset(() if "or" in self.asked else _NAME.findall(self._question))

    def _worth(self, start: int, end: int) -> bytearray:
        """Of each character of a span 1, or 0 if it is no answer alone or among its like."""
        worth = bytearray(char > " " for char in self._text[start:end])
        for first, last in self._worthless_ranges(start, end):
            if first < end and last > start:
                within = slice(max(first, start) - start, min(last, end) - start)
                worth[within] = bytes(within.stop - within.start)
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
                    self._repeats[begin] = list(_repeated(sentence, self.asked.words))
                yield from self._repeats[begin]
        for name in _NAME.finditer(text, around, stop) if self._names else ():
            if name[0] in self._names:
                yield name.span()


def _begins_line(text: str, start: int) -> bool:
    return not text[text.rfind("\n", 0, start) + 1 : start].strip(" \t>*_#")


def _repeated(sentence: re.Match[str], asked: Set[str]) -> Iterator[tuple[int, int]]:
    """The question's words in a sentence, if it repeats the question or is a heading."""
    words = list(_WORD.finditer(sentence.string, *sentence.span()))
    known = [word for word in words if word[0].lower() in asked]
    if not known:
        return
    known += [word for word in words if word[0].lower() in _ARTICLES]
    is_sentence = sentence[0][-1] in ".!" or len(words) > _MAX_HEADING_WORDS
    is_prose = is_sentence and len(known) < _MIN_REPEATED * len(words)
    if not is_prose and not ("or" in asked and all(word[0].lower() != "or" for word in known)):
        for word in known:
            yield word.span()
