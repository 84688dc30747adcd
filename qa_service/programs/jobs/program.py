"""Asks questions in the background: from a file, or from a broker's queue.

    python jobs.py run questions.jsonl --output answers.jsonl

    python jobs.py gateway &
    python jobs.py submit questions.jsonl
    python jobs.py collect --output answers.jsonl
    python jobs.py dead list
    python jobs.py status

`run` asks the server itself, and resumes after a kill. `gateway` takes jobs from RabbitMQ; the
other commands put jobs there and take answers out. See docs/JOBS.md.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any

from qa_service.client import QaClientError
from qa_service.command_line import INTERRUPTED, ExitCode
from qa_service.logs import complain, configure_logging
from qa_service.programs.jobs.base import BrokerError, SetupRefusedError
from qa_service.programs.jobs.flags import FlagError, make_flags
from qa_service.programs.jobs.questions_file import FileError

_FAULTS = (
    *(OSError, UnicodeDecodeError, QaClientError),
    *(FlagError, FileError, BrokerError, SetupRefusedError),
)


def main() -> int:
    """Runs the program; returns its exit code."""
    flags: dict[str, Any] = vars(make_flags(__doc__).parse_args())
    configure_logging(flags.get("log_level", "warning"), flags.get("log_format", "text"))
    for library in ("aio_pika", "aiormq"):  # the gateway logs the same events itself
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        # Only the command that runs is imported: `run` needs no broker's library.
        module = "file_run" if flags["command"] == "run" else flags["command"]
        command = importlib.import_module(f"qa_service.programs.jobs.{module}")
        return int(asyncio.run(command.main(flags)))
    except _FAULTS as error:
        complain(error)
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
