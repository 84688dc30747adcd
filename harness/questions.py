"""A text, questions about it, and the answers to them."""

from typing import Any

TEXT = (
    "Ada Lovelace wrote the notes in London in 1843. Charles Babbage had designed the Analytical "
    "Engine, and Luigi Menabrea had described it in French."
)
QUESTIONS = {
    "Who wrote the notes?": "Ada Lovelace",
    "When were the notes written?": "1843",
    "Who designed the Analytical Engine?": "Charles Babbage",
    "In which language did Menabrea describe it?": "French",
}
ASK: dict[str, Any] = {"question": "Who wrote the notes?", "text": TEXT}
ANSWER = QUESTIONS[ASK["question"]]
FIRST_WORD = "Ada"
"""What the instant engine answers to any question about the text."""
