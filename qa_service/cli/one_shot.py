"""One question from a command line: the answer on stdout, all else on stderr."""

from __future__ import annotations

import enum
import json
import sys
from typing import Any

from qa_service.cli.conversation import print_error
from qa_service.client import Answer, QaClient, QaClientError


class ExitCode(enum.IntEnum):
    """What a script learns without reading the output."""

    ANSWER = 0
    UNKNOWN = 1
    ERROR = 2


def ask_once(
    client: QaClient, question: str, text: str, *, top_k: int = 1, as_json: bool = False
) -> ExitCode:
    """Asks, prints what came of it, and says how it went.

    Args:
        client: Who answers.
        question: The question.
        text: The text that is to answer it.
        top_k: How many answers to print, the best first.
        as_json: Print the whole response, or the error, as one line of JSON.
    """
    try:
        answer = client.ask(question, text, top_k=top_k)
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
    for span in answer.alternatives or (answer,):
        print(span.answer if span.known else "Unknown")
    print(f"score {answer.score:.2f}, latency {answer.latency_ms:.1f} ms", file=sys.stderr)


def _error_fields(error: QaClientError) -> dict[str, Any]:
    """The error as the protocol writes one, whichever side it arose on."""
    message = getattr(error, "message", str(error))
    return {"code": error.code, "message": message, "retryable": error.retryable}


def _print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message, ensure_ascii=False))
