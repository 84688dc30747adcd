"""`jobs.py run`: runs a `FileRun`, shows its progress, and prints its summary."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from tqdm import tqdm

from qa_service.broker.asker import Asker
from qa_service.broker.file_run import FileRun, RunSettings, RunSummary
from qa_service.broker.flags import address_from
from qa_service.broker.questions_file import count_rows
from qa_service.cli.flags import INTERRUPTED


async def main(flags: dict[str, Any]) -> int:
    """Runs the command; returns its exit code: 1 if an answer is an error, 130 if stopped."""
    path, collection = flags["questions"], flags["collection"]
    asker = Asker(address_from(flags), flags["prefetch"], flags["num_connections"])
    delays_s = tuple(flags["retry_delays_s"])
    settings = RunSettings(
        flags["prefetch"],
        flags["max_attempts"],
        delays_s,
        flags["max_outage_s"],
        collection,
    )
    with tqdm(
        desc=path.name, total=count_rows(path, collection), unit="question", disable=None
    ) as bar:
        run = FileRun(asker, path, flags["output"], settings, bar.update)
        _stop_at_signals(run)
        summary = await run.run()
    print(_describe(summary, flags["output"]))
    return INTERRUPTED if summary.is_stopped else int(summary.failed + summary.failed_before > 0)


def _describe(summary: RunSummary, output: Path) -> str:
    before = f"{summary.resumed} had their answers already"
    if summary.failed_before:
        before += f", of which {summary.failed_before} failed"
    return f"{summary.answered} answered, {summary.failed} failed, {before}: {output}"


def _stop_at_signals(run: FileRun) -> None:
    """Makes the first SIGTERM or Ctrl-C stop the run, and the second end the program."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        run.stop()
        for signum in signals:
            loop.remove_signal_handler(signum)

    for signum in signals:
        loop.add_signal_handler(signum, stop)
