"""Logging set-up, the same in the server and in its workers."""

from __future__ import annotations

import json
import logging

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str, log_format: str) -> None:
    """Sends the log to standard error.

    Args:
        level: One of `LOG_LEVELS`.
        log_format: One of `LOG_FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s[%(process)d]: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
