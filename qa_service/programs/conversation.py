"""Conversation: texts and questions typed by a person, answered one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable

from qa_service.client import Answer, QaClient, QaClientError, QaServerError
from qa_service.flags import ExitCode
from qa_service.programs.access import TOKEN_VARIABLE
from qa_service.programs.line_editor import LineEditor
from qa_service.programs.sources import describe_passages, describe_source

WELCOME = """\
Enter ends a text or a question; a pasted text may have several lines.
An empty question asks for another text. Ctrl-C clears what is half typed.
Ctrl-D, quit or exit ends."""
FAREWELLS = {"quit", "exit"}
Ask = Callable[[str, str | None], Answer]
"""Asks a question on a text: `QaClient.ask` with the program's flags."""


class Conversation:
    """Reads a text, then questions on it, until the input ends."""

    def __init__(self, client: QaClient, editor: LineEditor, ask: Ask) -> None:
        self._client = client
        self._editor = editor
        self._ask = ask
        self._has_reached = False

    def run(self, text: str | None = "") -> ExitCode:
        """Runs until Ctrl-D, quit, exit, Ctrl-C with nothing typed, or the end of the input.

        Returns `ERROR` if no server was reached.

        It asks for the text if that is empty; None is for questions to a collection.
        """
        try:
            self._begin()
            while True:
                has_text = text is None or text.strip()
                self._answer_questions_on(text if has_text else self._ask_for_text())
                text = None if text is None else ""
        except EOFError:
            pass
        except KeyboardInterrupt:
            # readline ends the line at the end of the input, but not at an interrupt.
            print(file=sys.stderr)
        return ExitCode.YES if self._has_reached else ExitCode.ERROR

    def _begin(self) -> None:
        """Prints the instructions, and an error at once if no server can be reached."""
        if sys.stdin.isatty():
            print(WELCOME)
        try:
            self._client.connect()
            self._has_reached = True
        except QaClientError as error:
            print_error(error)

    def _ask_for_text(self) -> str:
        text = ""
        while not text.strip():
            text = self._read("Text")
        return text

    def _answer_questions_on(self, text: str | None) -> None:
        """Answers questions until an empty one."""
        while question := self._read("Question").strip():
            try:
                print(describe(self._ask(question, text)), flush=True)
                self._has_reached = True
            except QaClientError as error:
                print_error(error)

    def _read(self, name: str) -> str:
        """Reads an entry; raises `EOFError` at the end of the conversation."""
        entry = self._editor.read(name)
        if self._editor.is_terminal and entry.strip().lower() in FAREWELLS:
            raise EOFError
        return entry


def describe(answer: Answer) -> str:
    """The answer in lines for people, with its alternatives if there are any."""
    lines = [
        f"Answer: {answer.answer if answer.known else 'Unknown'}",
        *(f"        {line}" for line in describe_source(answer)),
        f"        score {answer.score:.2f}, latency {answer.latency_ms:.1f} ms",
    ]
    for span in answer.alternatives:
        lines.append(f"  {span.score:.2f}  {span.answer or 'Unknown'}")
        lines += [f"        {line}" for line in describe_source(span)]
    lines += [f"        {line}" for line in describe_passages(answer)]
    return "\n".join(lines)


def print_error(error: Exception) -> None:
    """Prints an error in one line, with the flag that helps."""
    hint = _HINTS.get(error.code, "") if isinstance(error, QaServerError) else ""
    print(f"Error: {error}{hint}", file=sys.stderr, flush=True)


_HINTS = {
    "unauthorized": f"; --token_file or {TOKEN_VARIABLE} gives the token",
    "tls_required": "; use --tls or --ca_file",
}
"""The flag that helps, by the error's code."""
