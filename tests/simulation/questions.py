"""Questions whose answers can only be their own.

Each subject has a key, a word that is in its text once and in no other; the answer is that word
and where it stands. The score is a digest of model, question and text: an answer of another
request, another model or another version is distinguished by it from the right one.
"""

import random
import zlib
from dataclasses import dataclass
from functools import cached_property

FILLERS = [
    "the", "notes", "of", "Ada", "say", "that", "café", "and", "work", "run", "on", "beside",
    "many", "other", "things",
]  # fmt: skip
PLAIN, ABSENT, POISON, FAULT = "where is", "whither went", "who dies of", "what breaks on"
"""What a question begins with. The last two kill their worker, and fail alone."""

STORY = random.Random(7).choices(FILLERS, k=4096)
"""Each text is a part of it: drawing the words of each took a 25th of a run."""


@dataclass(frozen=True)
class Subject:
    """What is asked: two of one number, with all else equal, are the same question."""

    number: int
    words: int = 8
    kind: str = PLAIN
    top_k: int = 1

    @cached_property
    def key(self) -> str:
        return f"k{self.number}q"

    @cached_property
    def question(self) -> str:
        return f"{self.kind} {self.key}"

    @cached_property
    def text(self) -> str:
        first = self.number * 7919 % 2048
        words = STORY[first : first + self.words]
        if self.kind != ABSENT:
            words[first % self.words] = self.key
        return " ".join(words)

    @property
    def tokens(self) -> int:
        """About how many tokens it has, by the server's own rule of thumb."""
        return 3 + (len(self.question.encode()) + len(self.text.encode())) // 4


def score_of(fingerprint: str, question: str, text: str) -> float:
    """The score that a version of that fingerprint gives."""
    digest = zlib.crc32(f"{fingerprint}|{question}|{text}".encode())
    return round(0.05 + 0.9 * digest / 2**32, 4)


def find_key(question: str, text: str) -> tuple[int, int] | None:
    """Where the key of a question stands in a text; None if it is not there."""
    key = question.rpartition(" ")[2]
    start = text.find(key)
    return (start, start + len(key)) if start >= 0 else None
