"""Asking from a terminal: one question, or texts and questions typed one at a time.

The answer to one question is on stdout, all else on stderr.

`LineEditor` takes entries from a terminal, with arrow keys, pastes and a history per prompt. A
paste is one entry, however many lines it has. With GNU readline the terminal brackets a paste, so
its line breaks are not Enter; elsewhere, a line that is there at once after a line break belongs to
the same entry. Without a terminal, an entry is a line.
"""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Callable

from qa_service.client import Answer, Passage, Place, QaClient, QaClientError, Span
from qa_service.command_line import ExitCode
from qa_service.headings import headings_over
from qa_service.programs.access import FLAG_REFUSALS, with_hint

try:
    import readline
except ImportError:  # missing on some platforms
    _HAS_READLINE = False
else:
    _HAS_READLINE = True
try:
    import termios
    import tty
except ImportError:  # missing on Windows
    _HAS_TERMIOS = False
else:
    _HAS_TERMIOS = True

_PASTE_PAUSE_S = 0.02
"""Longest pause within a paste; nobody types a key so soon after Enter."""
WELCOME = """\
Enter ends a text or a question; a pasted text may have several lines.
An empty question asks for another text. Ctrl-C clears what is half typed.
Ctrl-D, quit or exit ends."""
FAREWELLS = {"quit", "exit"}
QUESTION_HINT = "(This is taken as the text; an empty question asks for another one.)"
"""Where a text reads like a question, which belongs to the next line."""
Ask = Callable[[str, str | None], Answer]
"""Asks a question on a text: `QaClient.ask` with the program's flags."""

_SENTENCE_END = re.compile(r"[.!?…]\W{0,4}?\s+|\n\s*\n|[\u3002\uff01\uff1f]")
MARK = "**{}**"


def ask_once(ask: Ask, question: str, text: str | None, *, as_json: bool = False) -> ExitCode:
    """Asks, prints the answer or the error, and returns the exit code."""
    try:
        answer = ask(question, text)
    except QaClientError as error:
        print_error(error)
        if as_json:
            message = getattr(error, "message", str(error))
            detail = {"code": error.code, "message": message, "retryable": error.retryable}
            print(json.dumps({"error": detail}, ensure_ascii=False))
        return ExitCode.ERROR
    if as_json:
        response = {**answer.response, "latency_ms": round(answer.latency_ms, 3)}
        print(json.dumps(response, ensure_ascii=False))
    else:
        latency = f"latency {answer.latency_ms:.1f} ms"
        for span in answer.alternatives or [answer]:
            print(span.answer if span.known else "Unknown", flush=True)
            score = f"score {span.score:.2f}" + ("" if answer.alternatives else f", {latency}")
            print(*describe_source(span), score, sep="\n", file=sys.stderr)
        last = [latency] if answer.alternatives else []
        for line in [*last, *describe_unsure(answer), *describe_passages(answer)]:
            print(line, file=sys.stderr)
    return ExitCode.YES if answer.known else ExitCode.NO


class Conversation:
    """Reads a text, then questions on it, until the input ends."""

    def __init__(self, client: QaClient, editor: LineEditor, ask: Ask) -> None:
        self._client = client
        self._editor = editor
        self._ask = ask
        self._has_reached = False

    def run(self, text: str | None = "", question: str = "") -> ExitCode:
        """Runs until Ctrl-D, quit, exit, Ctrl-C with nothing typed, or the end of the input.

        Args:
            text: It is asked for if it is empty; None is for questions to a collection.
            question: What is asked first; empty to read it.

        Returns:
            `ERROR` if no server was reached.

        Raises:
            QaClientError: The server refuses what the program's flags name.
        """
        try:
            if sys.stdin.isatty():
                print(WELCOME)
            self._try(self._client.connect)  # an error is printed at once
            if question:
                self._answer(question, self._ask_for_text())
            while True:
                has_text = text is None or text.strip()
                asked_of = text if has_text else self._ask_for_text()
                while question := self._read("Question").strip():
                    self._answer(question, asked_of)
                text = None if text is None else ""
        except EOFError:
            pass
        except KeyboardInterrupt:
            # readline ends the line at the end of the input, but not at an interrupt.
            print(file=sys.stderr)
        return ExitCode.YES if self._has_reached else ExitCode.ERROR

    def _ask_for_text(self) -> str:
        text = ""
        while not text.strip():
            text = self._read("Text")
        if text.rstrip().endswith("?"):
            print(QUESTION_HINT, file=sys.stderr, flush=True)
        return text

    def _answer(self, question: str, text: str | None) -> None:
        self._try(lambda: print(describe(self._ask(question, text)), flush=True))

    def _try(self, reach: Callable[[], object]) -> None:
        try:
            reach()
            self._has_reached = True
        except QaClientError as error:
            if error.code in FLAG_REFUSALS:
                raise
            print_error(error)

    def _read(self, name: str) -> str:
        """Reads an entry; raises `EOFError` at the end of the conversation."""
        entry = self._editor.read(name)
        if self._editor.is_terminal and entry.strip().lower() in FAREWELLS:
            raise EOFError
        return entry


# Answers and errors, in words for people.


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
    more = [*describe_unsure(answer), *describe_passages(answer)]
    lines += [f"        {line}" for line in more]
    return "\n".join(lines)


def print_error(error: Exception) -> None:
    """Prints an error in one line, with the flag that helps."""
    print(f"Error: {with_hint(error)}", file=sys.stderr, flush=True)


def describe_source(span: Span) -> list[str]:
    """Of a collection, the sentence with the answer marked and its source; then other places."""
    if span.start is None or span.end is None:
        return []
    passage = span.passage
    own = (span.start, passage.document if passage else "", passage.collection if passage else "")
    others = [
        f"{_document(its)}, character {its.start}".removeprefix(", ")
        for its in span.places
        if (its.start, its.document, its.collection) != own
    ]
    lines = [f"also at {', '.join(others)}"] if others else []
    if passage is None:
        return lines
    return [_sentence(passage, span.start, span.end), _source(passage, span.start), *lines]


def _document(its: Passage | Place) -> str:
    return f"{its.collection}: {its.document}".removeprefix(": ")


def _sentence(passage: Passage, start: int, end: int) -> str:
    text, first, last = passage.text, start - passage.start, end - passage.start
    begin, stop = 0, len(text)
    for found in _SENTENCE_END.finditer(text):
        if found.end() <= first:
            begin = found.end()
        elif found.start() >= last - 1:
            stop = found.end()
            break
    marked = text[begin:first] + MARK.format(text[first:last]) + text[last:stop]
    return " ".join(marked.split())


def _source(passage: Passage, start: int) -> str:
    document = _document(passage)
    if passage.place:
        document += f", {passage.place}"
    elif passage.line:
        document += f":{passage.line}"
    return f"{document}, character {start}: {headings_over(passage.title, passage.heading)}"


def describe_unsure(answer: Answer) -> list[str]:
    """The answers that are not sure enough, with their places; lines for people."""
    lines = ["not sure enough:"] if answer.unsure else []
    for span in answer.unsure:
        lines.append(f"{span.score:.2f}  {span.answer}")
        lines += [f"   {line}" for line in describe_source(span)]
    return lines


def describe_passages(answer: Answer) -> list[str]:
    """The passages that were read, if the reply has them, with their places; lines for people."""
    if not answer.passages:
        return []
    count = len(answer.passages)
    which = f"the {count} passages" if count > 1 else "the passage"
    lines = [f"not found in {which} read:"] if not answer.known else [f"{which} read:"]
    for number, passage in enumerate(answer.passages, start=1):
        lines.append(f"{number}. {_source(passage, passage.start)}")
        lines += [f"   {line}" for line in passage.text.splitlines() if line.strip()]
    return lines


class LineEditor:
    """Reads entries at named prompts; each prompt recalls its earlier entries."""

    def __init__(self) -> None:
        self._histories: dict[str, list[str]] = {}
        self.is_terminal = sys.stdin.isatty()
        if _HAS_READLINE and self.is_terminal:
            readline.set_auto_history(False)
            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, name: str) -> str:
        """Reads an entry at the prompt of that name; Ctrl-C clears a half-typed one.

        Without a terminal there is no prompt, so that the output of a pipe holds only answers.

        Raises:
            EOFError: Ctrl-D, or the input's end.
            KeyboardInterrupt: Ctrl-C with nothing typed.
        """
        if not self.is_terminal:
            return input()
        entry = None
        while entry is None:
            entry = self._read_typed(name)
        history = self._histories.setdefault(name, [])
        if entry.strip() and entry not in history[-1:]:
            history.append(entry)
        return entry

    def _read_typed(self, name: str) -> str | None:
        """Reads an entry; None if it was cleared."""
        if _HAS_READLINE:
            readline.clear_history()
            for earlier in self._histories.get(name, []):
                readline.add_history(earlier)
        try:
            lines = [input(f"{name}: ")]
            while _is_more_there():
                lines.append(input())
        except KeyboardInterrupt:
            if not (_HAS_READLINE and readline.get_line_buffer()):
                raise
            print()
            return None
        return "\n".join(lines)


def _is_more_there() -> bool:
    """Whether more of a paste has come, at least part of a line."""
    if not _HAS_TERMIOS:
        return False
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        return bool(select.select([descriptor], [], [], _PASTE_PAUSE_S)[0])
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
