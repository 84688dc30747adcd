"""Conversation: texts and questions typed by a person, answered one at a time."""

from __future__ import annotations

import sys

from qa_service.access import TOKEN_VARIABLE
from qa_service.cli.asking import Asking
from qa_service.cli.line_editor import LineEditor
from qa_service.client import Answer, QaClient, QaClientError, QaServerError

WELCOME = """\
Enter ends a text or a question; a pasted text may have several lines.
An empty question asks for another text. Ctrl-C clears what is half typed.
Ctrl-D, quit or exit ends."""
FAREWELLS = {"quit", "exit"}


class Conversation:
    """Asks for a text, then for questions on it, until the input ends.

    Args:
        client: Where the questions go.
        editor: Where entries are read.
        asking: How questions are asked.
    """

    def __init__(self, client: QaClient, editor: LineEditor, asking: Asking) -> None:
        self._client = client
        self._editor = editor
        self._asking = asking

    def run(self, text: str = "") -> None:
        """Runs until Ctrl-D, quit, exit, Ctrl-C with nothing typed, or the end of the input.

        Args:
            text: The text of the first questions; if empty it is asked for.
        """
        try:
            self._begin()
            while True:
                self._answer_questions_on(text if text.strip() else self._ask_for_text())
                text = ""
        except EOFError:
            pass
        except KeyboardInterrupt:
            # readline ends the line at the end of the input, and not at an interrupt.
            print(file=sys.stderr)

    def _begin(self) -> None:
        """Prints the instructions, and an error at once if no server can be reached."""
        if sys.stdin.isatty():
            print(WELCOME)
        try:
            self._client.connect()
        except QaClientError as error:
            print_error(error)

    def _ask_for_text(self) -> str:
        text = ""
        while not text.strip():
            text = self._read("Text")
        return text

    def _answer_questions_on(self, text: str) -> None:
        """Answers questions until an empty one."""
        while question := self._read("Question").strip():
            try:
                print(describe(self._asking.ask(self._client, question, text)), flush=True)
            except QaClientError as error:
                print_error(error)

    def _read(self, name: str) -> str:
        """Reads an entry.

        Raises:
            EOFError: The conversation is over.
        """
        entry = self._editor.read(name)
        if self._editor.is_terminal and entry.strip().lower() in FAREWELLS:
            raise EOFError
        return entry


def describe(answer: Answer) -> str:
    """An answer as a person reads it, with its alternatives if they were asked for."""
    lines = [
        f"Answer: {answer.answer if answer.known else 'Unknown'}",
        f"        score {answer.score:.2f}, latency {answer.latency_ms:.1f} ms",
    ]
    lines += [f"  {span.score:.2f}  {span.answer or 'Unknown'}" for span in answer.alternatives]
    return "\n".join(lines)


def print_error(error: Exception) -> None:
    """Tells the person in one line what went wrong, and which flag it takes."""
    hint = _HINTS.get(error.code, "") if isinstance(error, QaServerError) else ""
    print(f"Error: {error}{hint}", file=sys.stderr, flush=True)


_HINTS = {
    "unauthorized": f"; --token_file or {TOKEN_VARIABLE} gives the token",
    "tls_required": "; use --tls or --ca_file",
}
"""What helps, by the error's code."""
