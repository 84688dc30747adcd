"""The whole check, step by step, and its exit code."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from qa_service.server.check.machine import temporary_folder
from qa_service.server.check.report import CheckReport
from qa_service.server.check.steps import STEPS
from qa_service.server.config import ServerConfig


def check(config: ServerConfig) -> int:
    """Prints what a start would find; returns the exit code."""
    is_text = config.logs.log_format == "text"
    report = CheckReport(print_now if is_text else lambda _: None)
    logging.getLogger().handlers.clear()  # what is logged is in the report
    _write_nothing()
    for step in STEPS:
        report.add(step.part, step.look(config))
    print_now(report.verdict if is_text else report.to_json())
    return report.exit_code


def _write_nothing() -> None:
    """Has neither Python, beside a module of hooks, nor PyTorch's import make a folder."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # It makes this one.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(temporary_folder() or Path.cwd()))


def print_now(line: str) -> None:
    """Prints a line at once, also to a pipe."""
    print(line, flush=True)
