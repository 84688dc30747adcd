"""Conversation: texts and questions typed by a person, answered one at a time."""

from __future__ import annotations

import sys

from qa_service.cli.line_editor import LineEditor
from qa_service.client import Answer, QaClient, QaClientError

WELCOME = """\
Enter ends a text or a question; a pasted text may have several lines.
An empty question asks for another text. Ctrl-D ends."""


class Conversation:
    """Asks for a text, then for questions on it, until the input ends.

    Args:
        client: Who answers.
        editor: Where entries are read.
        top_k: How many answers to show for a question.
    """

    def __init__(self, client: QaClient, editor: LineEditor, top_k: int = 1) -> None:
        self._client = client
        self._editor = editor
        self._top_k = top_k

    def run(self, text: str = "") -> None:
        """Goes on until Ctrl-D, Ctrl-C, or the end of a piped input.

        Args:
            text: The text of the first questions; if empty it is asked for.
        """
        try:
            self._greet()
            while True:
                self._answer_questions_on(text if text.strip() else self._ask_for_text())
                text = ""
        except EOFError:
            pass
        except KeyboardInterrupt:
            # At the end of the input readline ends the line, at an interrupt nobody does.
            print(file=sys.stderr)

    def _greet(self) -> None:
        """Says how it goes, and at once if there is nobody to answer."""
        if sys.stdin.isatty():
            print(WELCOME)
        try:
            self._client.connect()
        except QaClientError as error:
            print_error(error)

    def _ask_for_text(self) -> str:
        text = ""
        while not text.strip():
            text = self._editor.read("Text")
        return text

    def _answer_questions_on(self, text: str) -> None:
        """Answers questions until an empty one."""
        while question := self._editor.read("Question").strip():
            try:
                print(describe(self._client.ask(question, text, top_k=self._top_k)), flush=True)
            except QaClientError as error:
                print_error(error)


def describe(answer: Answer) -> str:
    """An answer as a person reads it, with its alternatives if they were asked for."""
    lines = [
        f"Answer: {answer.answer if answer.known else 'Unknown'}",
        f"        score {answer.score:.2f}, latency {answer.latency_ms:.1f} ms",
    ]
    lines += [f"  {span.score:.2f}  {span.answer or 'Unknown'}" for span in answer.alternatives]
    return "\n".join(lines)


def print_error(error: Exception) -> None:
    """Tells the person in one line what went wrong."""
    print(f"Error: {error}", file=sys.stderr, flush=True)
