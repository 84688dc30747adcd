"""A reader that answers at once with the text's first word: the server with no model in it.

For measuring the server itself, and nothing else: `--inference_engine_type instant`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from qa_service.batching import BatchRule
from qa_service.errors import QaError
from qa_service.protocol import Answer, Question
from qa_service.reading.stopwatch import Stopwatch


class InstantReader:
    """Stands where a `Reader` does, without tokenizer and model.

    Attributes:
        model_name: `instant`.
        rule: All that a batch may hold runs together: it costs nothing.
    """

    model_name = "instant"

    def __init__(self, rule: BatchRule) -> None:
        self.rule = rule

    def steps(
        self, questions: Sequence[Question], stopwatch: Stopwatch
    ) -> Generator[None, None, list[list[Answer] | QaError]]:
        """See `Reader.steps`; there is one step."""
        stopwatch.start()
        answers: list[list[Answer] | QaError] = [[first_word(item.text)] for item in questions]
        stopwatch.lap("read")
        return answers
        yield


def first_word(text: str) -> Answer:
    """The text's first word, or no answer if it has none."""
    words = text.split(maxsplit=1)
    if not words:
        return Answer("", 1.0, None, None)
    start = text.index(words[0])
    return Answer(words[0], 1.0, start, start + len(words[0]))
