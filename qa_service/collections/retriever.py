"""What finds passages for a question: a `Collection` here, or a search engine elsewhere."""

from __future__ import annotations

from typing import Protocol

import msgspec

from qa_service.wire.messages import Passage


class FoundPassage(msgspec.Struct, frozen=True):
    """A passage and how well it matches.

    Attributes:
        score: BM25; comparable within one question's passages.
    """

    score: float
    passage: Passage


class Retriever(Protocol):
    """Searches passages."""

    def search(self, question: str, max_passages: int) -> list[FoundPassage]:
        """The passages that match a question best, the best first."""

    def refresh(self) -> bool:
        """Opens the newest index; returns whether it is another than before.

        Raises:
            SetupError: It cannot be opened; what was open stays so.
        """
