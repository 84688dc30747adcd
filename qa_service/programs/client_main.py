"""Asks a QA server: one question from the command line, or a conversation without one.

    python client.py
    python client.py --text_file examples/article.txt
    python client.py --question "Who wrote it?" --text "It was written by Ada."
    python client.py "Who approves leave?" --collection handbook
    curl -s https://example.org/article.txt | python client.py --question "Who wrote it?" -
    python client.py --health
    python client.py --host a,b:9998 --stats
    python client.py --models
    python client.py --model fast --model_version canary
    python client.py --collection handbook --question "Who approves leave?"

Needs nothing but Python's standard library. With --question the exit code is 0 for an answer, 1 for
Unknown, 2 for an error. With --health it is 0 for a server that is ready, 1 for one that is not, 2
for no reply. With several servers, --health and --stats ask each, and the highest exit code is
returned; a question goes to one that can answer it.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

from qa_service.client import AskOptions, QaClientError
from qa_service.command_line import ExitCode, hosts, make_parser, port, seconds
from qa_service.programs.access import Access
from qa_service.programs.asking import Conversation, LineEditor, ask_once, print_error
from qa_service.programs.monitor import show_health, show_models, show_stats

STDIN = Path("-")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the flags; leaves the program with code 2 where they make no sense."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    where = "the server's name or address; several as a,b:9998 stand for one"
    add("--host", type=hosts, default="localhost", help=where)
    add("--port", type=port, default=9999, help="the TCP port of those that name none")
    Access.add_flags(parser)
    add("--timeout_s", type=seconds, default=60.0, help="longest wait for an answer, in seconds")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--question", help="ask this one question and end")
    what.add_argument("--health", action="store_true", help="say whether the server is ready")
    what.add_argument("--stats", action="store_true", help="show what the server has counted")
    what.add_argument("--models", action="store_true", help="show what the server has to ask")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", help="the text that is to answer it")
    source.add_argument("--text_file", type=Path, help="a UTF-8 file with the text; - for stdin")
    words = "the question, if --question is not given; without a text the program asks for it"
    add("words", nargs="?", metavar="QUESTION|-", help=f"{words}; - is --text_file -")
    for name, (kind, text) in ask_options().items():
        group = source if name == "collection" else parser
        group.add_argument(option_flag(name), type=kind, help=text)
    add("--json", action="store_true", help="print the whole response as a line of JSON")
    parsed = parser.parse_args(arguments)
    if parsed.words == str(STDIN) and parsed.text is parsed.text_file is parsed.collection:
        parsed.text_file, parsed.words = STDIN, None
    check_together(parser, parsed)
    return parsed


def ask_options() -> dict[str, tuple[Callable[[str], object], str]]:
    found: dict[str, tuple[Callable[[str], object], str]] = {}
    for name, hint in get_type_hints(AskOptions, include_extras=True).items():
        bare, text = get_args(hint)
        kinds = set(get_args(bare) or [bare])
        kind = next((kind for kind in (str, float, int) if kind in kinds), filter_of)
        found[name] = kind, text
    return found


def filter_of(words: str) -> dict[str, object]:
    """The filter that a flag's words are: JSON, or a field's name and its value."""
    name, sign, value = words.partition("=")
    if sign and not words.lstrip().startswith("{"):
        return {name: value}
    try:
        parsed = json.loads(words)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"neither NAME=VALUE nor JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("neither NAME=VALUE nor an object of JSON")
    return parsed


def option_flag(name: str) -> str:
    """The flag of an option; `--version` is the program's."""
    return "--model_version" if name == "version" else f"--{name}"


def check_together(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    sources = (parsed.text, parsed.text_file, parsed.collection)
    has_text = any(source is not None for source in sources)
    if parsed.words == str(STDIN):
        parser.error("- excludes --text, --text_file and --collection")
    if parsed.words and (parsed.question is not None or asks_of_server(parsed)):
        parser.error("a question excludes --question, --health, --stats and --models")
    if parsed.words and has_text:
        parsed.question, parsed.words = parsed.words, None
    if parsed.question is not None and not has_text:
        parser.error("--question needs a text: --text, --text_file or -; or a --collection")
    if parsed.question is None and parsed.text_file == STDIN:
        parser.error("- needs --question")
    if parsed.question is None and parsed.json and not asks_of_server(parsed):
        parser.error("--json needs --question, --health, --stats or --models")
    if asks_of_server(parsed) and has_text:
        parser.error("--health, --stats and --models take no text")


def asks_of_server(parsed: argparse.Namespace) -> bool:
    return bool(parsed.health or parsed.stats or parsed.models)


def read_text(parsed: argparse.Namespace) -> str:
    """The text, to the byte; empty if none was given."""
    if parsed.text_file is None:
        return parsed.text or ""
    is_stdin = parsed.text_file == STDIN
    data = sys.stdin.buffer.read() if is_stdin else parsed.text_file.read_bytes()
    try:
        return str(data.decode())
    except UnicodeDecodeError as error:
        name = "standard input" if is_stdin else parsed.text_file
        raise QaClientError(f"{name} is not a text in UTF-8: {error}") from None


def monitor(parsed: argparse.Namespace, access: Access) -> int:
    """Shows each server's health, counts or models; returns the worst exit code."""
    show = show_health if parsed.health else show_stats if parsed.stats else show_models
    hosts_alone = parsed.host.split(",")
    codes = []
    for host in hosts_alone:
        if len(hosts_alone) > 1 and not parsed.json:
            print(f"{host}:")
        with access.client(host, parsed.port, parsed.timeout_s) as client:
            try:
                codes.append(show(client, parsed.json))
            except QaClientError as error:
                print_error(error)
                codes.append(ExitCode.ERROR)
    return max(codes)


def main() -> int:
    parsed = parse_arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the terminal's encoding lacks are shown as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        text = None if parsed.collection else read_text(parsed)
        access = Access.from_flags(vars(parsed))
        if asks_of_server(parsed):
            return monitor(parsed, access)
        with access.client(parsed.host, parsed.port, parsed.timeout_s) as client:
            options = {name: getattr(parsed, option_flag(name)[2:]) for name in ask_options()}
            given = {name: value for name, value in options.items() if value is not None}
            ask = functools.partial(client.ask, **given)
            if parsed.question is None:
                return Conversation(client, LineEditor(), ask).run(text, parsed.words or "")
            return ask_once(ask, parsed.question, text, as_json=parsed.json)
    except (OSError, QaClientError) as error:
        print_error(error)
        return ExitCode.ERROR
