"""One question from a command line: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import enum
import json
import sys
from typing import Any

from qa_service.cli.asking import Asking
from qa_service.cli.conversation import print_error
from qa_service.client import Answer, QaClient, QaClientError, Span


class ExitCode(enum.IntEnum):
    """The exit codes of a single question."""

    ANSWER = 0
    UNKNOWN = 1
    ERROR = 2


def ask_once(
    client: QaClient, question: str, text: str, asking: Asking, *, as_json: bool = False
) -> ExitCode:
    """Asks, prints the answer or the error, and returns the exit code.

    Args:
        as_json: Print the whole response, or the error, as one line of JSON.
    """
    try:
        answer = asking.ask(client, question, text)
    except QaClientError as error:
        print_error(error)
        if as_json:
            _print_json({"error": _error_fields(error)})
        return ExitCode.ERROR
    if as_json:
        _print_json({**answer.response, "latency_ms": round(answer.latency_ms, 3)})
    else:
        _print_answers(answer)
    return ExitCode.ANSWER if answer.known else ExitCode.UNKNOWN


def _print_answers(answer: Answer) -> None:
    """Each answer on a line of stdout, its score on the next of stderr, and last the latency."""
    latency = f"latency {answer.latency_ms:.1f} ms"
    if not answer.alternatives:
        print(_words(answer), flush=True)
        print(f"score {answer.score:.2f}, {latency}", file=sys.stderr)
        return
    for span in answer.alternatives:
        print(_words(span), flush=True)
        print(f"score {span.score:.2f}", file=sys.stderr)
    print(latency, file=sys.stderr)


def _words(span: Span) -> str:
    return span.answer if span.known else "Unknown"


def _error_fields(error: QaClientError) -> dict[str, Any]:
    """The error as the protocol writes one, whichever side it arose on."""
    message = getattr(error, "message", str(error))
    return {"code": error.code, "message": message, "retryable": error.retryable}


def _print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message, ensure_ascii=False))
