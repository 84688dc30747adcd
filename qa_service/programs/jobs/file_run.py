"""`jobs.py run`: a file of questions to a file of answers, without a broker.

It keeps the server full, preserves the file's order, and resumes after a kill: answered questions
are not asked again. A run that is stopped writes the answers in flight first; a run that is killed
loses those of at most `--prefetch` questions. A question that fails for good, or cannot be read,
has the error in its line.

An answer that comes before its turn is written to the disk at once, and moved to its place when
those before it have arrived. That time is bounded: a question is tried `max_attempts` times, each
attempt ends (see `Asker`), and the run ends with an error when the server is away for too long.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from qa_service.client import QaClientError, QaServerError
from qa_service.command_line import INTERRUPTED
from qa_service.programs.jobs.answers_file import Claim
from qa_service.programs.jobs.asker import Asker, StoppedError
from qa_service.programs.jobs.job import as_server_error, encode_answer, encode_error, parse_request
from qa_service.programs.jobs.jobs_options import RunOptions
from qa_service.programs.jobs.ordered_output import OrderedOutput, StreamedOutput
from qa_service.programs.jobs.questions_file import FileError, Row, count_rows, read_rows
from qa_service.progress import progress_bar

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
MAX_AHEAD = 20_000
"""Answers that may wait for an earlier one; past it, no further question is asked."""


async def run_main(options: RunOptions) -> int:
    """Runs a file; returns the exit code: 1 if an answer is an error, 130 if it was stopped.

    The first SIGTERM or Ctrl-C stops the run, and the second ends the program.
    """
    asker, loop = Asker(options.asking), asyncio.get_running_loop()
    total = count_rows(options.questions, options.collection)
    with progress_bar(desc=options.questions.name, total=total, unit="question") as bar:
        run = FileRun(asker, options, bar.update)

        def stop() -> None:
            run.stop()
            for signum in _SIGNALS:
                loop.remove_signal_handler(signum)

        for signum in _SIGNALS:
            loop.add_signal_handler(signum, stop)
        summary = await run.run()
    print(f"{summary}: {options.output}")
    return INTERRUPTED if summary.is_stopped else int(summary.failed + summary.failed_before > 0)


@dataclass(slots=True)
class RunSummary:
    """The outcomes of the questions; `resumed` were answered by an earlier run."""

    resumed: int = 0
    answered: int = 0
    failed: int = 0
    failed_before: int = 0
    is_stopped: bool = False

    def __str__(self) -> str:
        before = f"{self.resumed} had their answers already"
        if self.failed_before:
            before += f", of which {self.failed_before} failed"
        return f"{self.answered} answered, {self.failed} failed, {before}"


class FileRun:
    """One run, which keeps what the file of answers holds already.

    Raises:
        FileError: Another run writes to the answers, or they belong to other questions.
        OSError: A file cannot be read or written.
    """

    def __init__(
        self, asker: Asker, options: RunOptions, progress: Callable[[int], object] = lambda _: None
    ) -> None:
        self._asker, self._options, self._progress = asker, options, progress
        output = options.output
        is_kept = output.is_file() or not output.exists()
        self._claim = Claim(output, options.questions) if is_kept else None
        self._output = OrderedOutput(output) if is_kept else StreamedOutput(output)
        self._rows = self._unanswered(read_rows(options.questions, options.collection))
        self._room = asyncio.Event()
        self._room.set()
        self._has_new = asyncio.Event()
        self._stopping = asyncio.Event()
        self.summary = RunSummary(failed_before=self._output.num_errors)

    def stop(self) -> None:
        """Asks no more; `run` returns when the answers in flight are written."""
        self.summary.is_stopped = True
        self._stopping.set()
        self._room.set()
        self._asker.window.stop()

    async def run(self) -> RunSummary:
        """Asks every question without an answer.

        Raises:
            FileError: A file cannot be read, or the answers are not those of the questions.
            OSError: The answers cannot be written.
            QaClientError: The server cannot be reached, at the start or for too long.
        """
        try:
            async with self._asker.running():
                await self._asker.check()
                async with asyncio.TaskGroup() as group:
                    flusher = group.create_task(self._flush_as_they_come())
                    watch = group.create_task(self._asker.lost_for(self._options.max_outage_s))
                    num_lanes = self._options.asking.prefetch
                    lanes = [group.create_task(self._lane()) for _ in range(num_lanes)]
                    await asyncio.wait(lanes)
                    flusher.cancel()
                    watch.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self._output.close()
            if self._claim:
                self._claim.close()
        return self.summary

    def _unanswered(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            last = self._output.last_line if row.number == self._output.num_written else None
            if last:
                try:
                    line = msgspec.json.decode(last)
                except msgspec.DecodeError:
                    line = None
                if not (isinstance(line, dict) and line.get("id") == row.id):
                    place = f"{self._options.output}, line {row.number}"
                    raise FileError(f"{place}: not an answer to this question file")
            if self._output.has(row.number - 1):
                self.summary.resumed += 1
                self._progress(1)
            else:
                yield row

    async def _lane(self) -> None:
        with suppress(StoppedError):
            while not self._stopping.is_set():
                await self._room.wait()
                row = next(self._rows, None)
                if row is None:
                    return
                self._output.put(row.number - 1, await self._ask(row))
                self._has_new.set()
                self._progress(1)
                if self._output.num_ahead > MAX_AHEAD:
                    self._room.clear()

    async def _ask(self, row: Row) -> bytes:
        attempts = 0
        while True:
            attempts += 1
            try:
                if row.fault:
                    raise QaServerError("invalid_frame", row.fault)
                request = parse_request(row.body)
                reply = await self._asker.ask(request, row.number)
            except QaClientError as error:
                if not error.retryable or attempts >= self._options.asking.max_attempts:
                    self.summary.failed += 1
                    return encode_error(row.id, as_server_error(error))
                delays_s = self._options.retry.delays_s
                await self._asker.window.rest(delays_s[min(attempts, len(delays_s)) - 1])
            else:
                self.summary.answered += 1
                return encode_answer(row.id, reply)

    async def _flush_as_they_come(self) -> None:
        """Writes all answers of one turn of the event loop at once."""
        while True:
            await self._has_new.wait()
            self._has_new.clear()
            self._output.flush()
            if self._output.num_ahead <= MAX_AHEAD:
                self._room.set()
