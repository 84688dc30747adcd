"""Logging, the same in the server and in its workers."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal

from msgspec import Meta, Struct

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class LogOptions(Struct, frozen=True, kw_only=True):
    """The log, on standard error."""

    log_level: Annotated[LogLevel, Meta(description="lowest level that is logged")] = "info"
    log_format: Annotated[LogFormat, Meta(description="one line of text or of JSON an event")] = (
        "text"
    )


def plural(number: int, noun: str) -> str:
    """`1 instance`, `2 instances`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def hide_password(url: str) -> str:
    """A URL with `***` for its password, whichever characters that has."""
    return re.sub(r"(?s)^((?:\w+://)?[^:/@]*):.*@", r"\1:***@", url)


def printable(text: str) -> str:
    """A text as one line without control characters and halves of surrogate pairs."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339), level, logger, process, message, any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .astimezone()
            .isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if trace_id := getattr(record, "trace_id", ""):
            line["trace_id"] = trace_id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def as_log_line(message: str, log_format: str) -> str:
    """What a program says on standard output, in the form of its log."""
    if log_format != "json":
        return message
    record = logging.LogRecord("qa_service", logging.INFO, "", 0, message, None, None)
    return JsonFormatter().format(record)


def configure_logging(level: str, log_format: str) -> None:
    """Sends the log to standard error; as JSON, what Python would print there as well."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s[%(process)d]: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_traceback


def complain(words: object) -> None:
    """Says a line on stderr: after the program's name as it was started, or as the log's JSON."""
    handlers = logging.getLogger().handlers
    if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers):
        logging.getLogger("qa_service").error("%s", words)
    else:
        print(f"{Path(sys.argv[0]).name}: {words}", file=sys.stderr)


def _log_traceback(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logging.getLogger("qa_service").critical("the program ends", exc_info=(kind, error, traceback))
