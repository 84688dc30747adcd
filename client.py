"""Asks a QA server: one question from the command line, or a conversation without one.

    python client.py
    python client.py --text_file article.txt
    python client.py --question "Who wrote it?" --text "It was written by Ada."
    curl -s https://example.org/article.txt | python client.py --question "Who wrote it?" -
    python client.py --health

Needs nothing but Python's standard library. With --question the exit code is 0 for an
answer, 1 for Unknown, 2 for an error; with --health it is 0 for a server that is ready, 1 for
one that is not, 2 for none.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from qa_service.cli.access import Access
from qa_service.cli.conversation import Conversation, print_error
from qa_service.cli.flags import INTERRUPTED, count, make_parser, port, seconds
from qa_service.cli.line_editor import LineEditor, history_path
from qa_service.cli.monitor import show_health, show_stats
from qa_service.cli.one_shot import ExitCode, ask_once
from qa_service.client import QaClient, QaClientError


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the flags; leaves the program with code 2 where they make no sense."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--host", default="localhost", help="the server's name or address")
    add("--port", type=port, default=9999, help="the server's TCP port")
    Access.add_flags(parser)
    add("--timeout_s", type=seconds, default=60.0, help="longest wait for an answer, in seconds")
    add("--top_k", type=count, default=1, help="how many answers to show, the best first")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--question", help="ask this one question and end")
    what.add_argument("--health", action="store_true", help="say whether the server is ready")
    what.add_argument("--stats", action="store_true", help="show what the server has counted")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", help="the text that is to answer it")
    source.add_argument("--text_file", type=Path, help="a UTF-8 file with the text")
    source.add_argument("stdin", nargs="?", choices=["-"], help="read the text from stdin")
    add("--json", action="store_true", help="print the whole response as a line of JSON")
    history = "keep what is entered for later conversations, in the user's state directory"
    add("--keep_history", action="store_true", help=history)
    parsed = parser.parse_args(arguments)
    check_together(parser, parsed)
    return parsed


def check_together(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Refuses flags that are well alone but not with each other."""
    has_text = parsed.text is not None or parsed.text_file is not None or parsed.stdin
    if parsed.question is not None and not has_text:
        parser.error("--question needs a text: --text, --text_file or -")
    asks_of_server = parsed.health or parsed.stats
    if parsed.question is None and parsed.stdin:
        parser.error("- needs --question")
    if parsed.question is None and parsed.json and not asks_of_server:
        parser.error("--json needs --question, --health or --stats")
    if asks_of_server and has_text:
        parser.error("--health and --stats take no text")


def read_text(parsed: argparse.Namespace) -> str:
    """The text as it was given, to the byte; empty if it is to be asked for.

    Raises:
        OSError: The file or stdin cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    if parsed.stdin:
        return sys.stdin.buffer.read().decode()
    if parsed.text_file is not None:
        return str(parsed.text_file.read_bytes().decode())
    return parsed.text or ""


def converse(client: QaClient, text: str, top_k: int, keep_history: bool) -> ExitCode:
    """Talks with the person at the terminal until they have had enough."""
    editor = LineEditor(history_path() if keep_history else None)
    Conversation(client, editor, top_k).run(text)
    editor.save()
    return ExitCode.ANSWER


def main() -> int:
    """Runs the program; returns its exit code."""
    parsed = parse_arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal's encoding lacks is better shown in escapes than not at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        text = read_text(parsed)
        access = Access.from_flags(vars(parsed))
        with QaClient(
            parsed.host,
            parsed.port,
            parsed.timeout_s,
            tls=access.tls_context(),
            token=access.token,
        ) as client:
            if parsed.health:
                return show_health(client, parsed.json)
            if parsed.stats:
                return show_stats(client, parsed.json)
            if parsed.question is None:
                return converse(client, text, parsed.top_k, parsed.keep_history)
            return ask_once(client, parsed.question, text, top_k=parsed.top_k, as_json=parsed.json)
    except (OSError, UnicodeDecodeError, QaClientError) as error:
        print_error(error)
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
