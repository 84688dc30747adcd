"""Logging, the same in the server and in its workers."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal

from msgspec import Meta, Struct

PEER_INTERVAL_S = 60.0
"""Between two lines that the same peer causes."""
MAX_PEERS = 100
"""Lines that all peers together cause in that time; a client may have any number of addresses."""

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


def printable(text: str) -> str:
    """A text as one line without control characters and halves of surrogate pairs."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339), level, logger, process, message, any traceback."""

    def format(self, record: logging.LogRecord) -> str:
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


class OneLineAPeer(logging.Filter):
    """Of the lines that a client causes at will, passes one a peer and minute.

    Such a record names its `peer`, as `host:port`. The next line that passes says how many did not.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._quiet_until_s: dict[str, float] = {}  # the first ends first
        self._num_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if (name := getattr(record, "peer", None)) is None:
            return True
        now_s, peer = self._now_s(), name.rpartition(":")[0]
        for known, until_s in list(self._quiet_until_s.items()):
            if now_s < until_s:
                break
            del self._quiet_until_s[known]
        if peer in self._quiet_until_s or len(self._quiet_until_s) >= MAX_PEERS:
            self._num_left_out += 1
            return False
        self._quiet_until_s[peer] = now_s + PEER_INTERVAL_S
        if self._num_left_out:
            others = f"{plural(self._num_left_out, 'such line')} left out before it"
            record.msg, record.args = f"{record.getMessage()} ({others})", ()
            self._num_left_out = 0
        return True


class KeptWarnings(logging.Handler):
    """Keeps what is logged as a warning or worse, until it is taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())

    def take(self) -> list[str]:
        kept, self._kept = self._kept, []
        return kept


def as_log_line(message: str, log_format: str) -> str:
    """What a program says on standard output, in the form of its log."""
    if log_format != "json":
        return message
    record = logging.LogRecord("qa_service", logging.INFO, "", 0, message, None, None)
    return JsonFormatter().format(record)


def configure_logging(level: str, log_format: str) -> None:
    """Sends the log to standard error; as JSON, what Python would print there as well."""
    handler = logging.StreamHandler()
    handler.addFilter(OneLineAPeer())
    handler.setFormatter(
        JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s[%(process)d]: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_traceback
        threading.excepthook = _log_threads_traceback
        sys.unraisablehook = _log_unraisable


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


def _log_threads_traceback(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is None or isinstance(given.exc_value, SystemExit):
        return
    name = given.thread.name if given.thread else "unknown"
    raised = (given.exc_type, given.exc_value, given.exc_traceback)
    logging.getLogger("qa_service").error("the thread %s ends", name, exc_info=raised)


def _log_unraisable(given: sys.UnraisableHookArgs) -> None:
    """Logs what is raised where nothing can catch it, as in `__del__`."""
    words = f"{given.err_msg or 'exception ignored in'}: {given.object!r}"
    error = given.exc_value or given.exc_type()
    raised = (given.exc_type, error, given.exc_traceback)
    logging.getLogger("qa_service").error("%s", words, exc_info=raised)
