"""One question from a command line: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from qa_service.client import Answer, QaClientError
from qa_service.flags import ExitCode
from qa_service.programs.conversation import Ask, print_error
from qa_service.programs.sources import describe_passages, describe_source


def ask_once(ask: Ask, question: str, text: str | None, *, as_json: bool = False) -> ExitCode:
    """Asks, prints the answer or the error, and returns the exit code."""
    try:
        answer = ask(question, text)
    except QaClientError as error:
        print_error(error)
        if as_json:
            print(json.dumps({"error": _error_fields(error)}, ensure_ascii=False))
        return ExitCode.ERROR
    if as_json:
        response = {**answer.response, "latency_ms": round(answer.latency_ms, 3)}
        print(json.dumps(response, ensure_ascii=False))
    else:
        _print_answers(answer)
    return ExitCode.YES if answer.known else ExitCode.NO


def _print_answers(answer: Answer) -> None:
    """Prints each answer to stdout, and the scores and the latency to stderr."""
    latency = f"latency {answer.latency_ms:.1f} ms"
    for span in answer.alternatives or [answer]:
        print(span.answer if span.known else "Unknown", flush=True)
        for line in describe_source(span):
            print(line, file=sys.stderr)
        score = f"score {span.score:.2f}"
        print(score if answer.alternatives else f"{score}, {latency}", file=sys.stderr)
    if answer.alternatives:
        print(latency, file=sys.stderr)
    for line in describe_passages(answer):
        print(line, file=sys.stderr)


def _error_fields(error: QaClientError) -> dict[str, Any]:
    """The error in the protocol's form, the client's own too."""
    message = getattr(error, "message", str(error))
    return {"code": error.code, "message": message, "retryable": error.retryable}
