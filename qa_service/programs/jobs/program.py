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

from qa_service.client import QaClientError
from qa_service.command_line import ExitCode
from qa_service.errors import SetupError
from qa_service.logs import complain, configure_logging
from qa_service.programs.access import with_hint
from qa_service.programs.jobs.brokers import BrokerError
from qa_service.programs.jobs.jobs_options import GatewayOptions, parse

_MODULES = {"run": "file_run", "gateway": "job_gateway"}
"""Of the commands that have one alone."""


def main() -> int:
    try:
        command, options = parse(__doc__)
        if isinstance(options, GatewayOptions):
            configure_logging(options.log_level, options.log_format)
        else:
            configure_logging("warning", "text")
        for library in ("aio_pika", "aiormq"):  # the gateway logs the same events itself
            logging.getLogger(library).setLevel(logging.CRITICAL)
        # Only the command that runs is imported: `run` needs no broker's library.
        module = _MODULES.get(command, "broker_commands")
        program = importlib.import_module(f"qa_service.programs.jobs.{module}")
        return int(asyncio.run(getattr(program, f"{command}_main")(options)))
    except (OSError, QaClientError, SetupError, BrokerError) as error:
        complain(with_hint(error))
        return ExitCode.ERROR
