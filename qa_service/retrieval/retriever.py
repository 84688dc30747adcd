"""What finds passages for a question: a `Collection` here, or a search engine elsewhere."""

from __future__ import annotations

from typing import Protocol

import msgspec

from qa_service.headings import headings_over
from qa_service.retrieval.documents import Mark
from qa_service.wire.messages import Filter, Passage

BM25_WEIGHT = 0.71
COSINE_WEIGHT = 21.5
"""What a point of BM25 and a cosine of 1 add to a merged score (`merging`)."""

TYPICAL_COSINE = 0.62
"""The highest cosine of a question's passages, in the mean: of 514 questions with an answer."""

MAX_LEAD = 8.0
"""By how many points a passage leads the next at most, for what that says of its answer."""


class FoundPassage(msgspec.Struct, frozen=True):
    """A passage and how well it matches.

    Attributes:
        score: In points of BM25; with embeddings, in units worth as much (`merging`); comparable
            within one question's passages.
        cosine: Of the passage's and the question's embeddings, by the encoder for which models know
            what it is worth; comparable between questions and collections.
        marks: Where in its file its parts are; none if that is not known.
    """

    score: float
    passage: Passage
    cosine: float | None = None
    marks: tuple[Mark, ...] = ()

    def passage_at(self, start: int) -> Passage:
        """The passage with the page and the place of what stands at an offset of the document."""
        before = [mark for mark in self.marks if mark.start <= start]
        if not before:
            return self.passage
        page, place = before[-1].page, before[-1].place
        return msgspec.structs.replace(self.passage, page=page, place=place)


class WordCounts(msgspec.Struct, frozen=True):
    """By which a rare word counts more than a common one: of one index, or of several together.

    Attributes:
        by_word: How many passages have each of a question's words.
    """

    passages: int
    by_word: dict[str, int]


class ReadText(msgspec.Struct, frozen=True):
    """What a reader is given of a passage: a line that says where it stands, then the passage.

    Attributes:
        start: Where the passage begins in the text, in code points; no answer lies before it.
    """

    text: str
    start: int


def read_text(title: str, heading: str, passage: str) -> ReadText:
    """The text that a reader is given; it was trained on the same.

    Args:
        heading: The headings above the passage, joined by " > ".
    """
    line = headings_over(title, heading)
    context = f"{line}\n" if line else ""
    return ReadText(context + passage, len(context))


class OpenIndex(Protocol):
    """What a search process has opened: a folder of `qa-index`, or an index elsewhere."""

    @property
    def identity(self) -> str:
        """Differs between indexes in which a search may find something else."""

    @property
    def fault(self) -> str:
        """Why it is searched worse than it could be, or not at all; empty if neither."""

    def search(
        self,
        question: str,
        max_passages: int,
        wanted: Filter | None = None,
        counts: WordCounts | None = None,
    ) -> list[FoundPassage]:
        """The passages that match a question best, the best first.

        Args:
            wanted: The documents that they may be of; None for all.
            counts: Those of all collections that are searched for this question, so that scores
                are comparable; None for this one alone.

        Raises:
            InvalidRequestError: No document has a field of the filter.
        """

    def count_words(self, question: str) -> WordCounts:
        """How often the question's words are in this one."""

    def refresh(self) -> bool:
        """Opens the newest index; returns whether it is another than before.

        Raises:
            SetupError: It cannot be opened; what was open stays so.
        """

    def take_left_out(self) -> int:
        """How many documents were left out since the last call, as they are no passages."""
