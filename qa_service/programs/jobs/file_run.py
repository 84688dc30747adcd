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
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from qa_service.client import QaClientError, QaServerError
from qa_service.command_line import INTERRUPTED
from qa_service.programs.jobs.answers_file import CHUNK_BYTES, ahead_of, claim
from qa_service.programs.jobs.asker import Asker, StoppedError
from qa_service.programs.jobs.job import (
    as_server_error,
    encode_answer,
    encode_error,
    is_error,
    parse_request,
)
from qa_service.programs.jobs.jobs_options import RunOptions
from qa_service.programs.jobs.questions_file import FileError, Row, count_rows, read_rows
from qa_service.progress import progress_bar

_MAX_AHEAD_BYTES = 1 << 24
"""Above this, the second file is rewritten without the answers that are in order by now."""
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
        self._claim = claim(output, options.questions, options.collection) if is_kept else None
        self._output = OrderedOutput(output, is_kept=is_kept)
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
            QaClientError: The server cannot be reached, at the start or for too long, or does not
                know the collection of all questions.
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
                if self._options.collection and error.code == "unknown_collection":
                    raise  # every question names it
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


class OrderedOutput:
    """Answers in the order of their questions, in two files whose content is kept.

        answers.jsonl         line n answers question n; it grows at its end only
        answers.jsonl.ahead   answers that arrived before their turn: "n <tab> line"

    Both are written in the turn in which answers arrive, so a program that is killed loses only the
    questions in flight, and resumes from both files. A line that was cut short is dropped. `put`
    and `flush` are cheap: one `write` to each file for all answers of a turn.

    Args:
        is_kept: Not of a pipe or a device: nothing is resumed from it, and it has no second file.

    Attributes:
        num_written: Lines in order: questions below this index are answered.
        num_errors: Error answers in both files.
        last_line: The last line in order; None if there is none.
    """

    def __init__(self, path: Path, *, is_kept: bool = True) -> None:
        self._ahead_path = ahead_of(path)
        self._ahead_file: BinaryIO | None = None
        self._ahead: dict[int, bytes] = {}
        self._new: list[tuple[int, bytes]] = []
        self.num_written, self.num_errors = 0, 0
        self.last_line: bytes | None = None
        if not is_kept:
            self._file: BinaryIO = path.open("wb", buffering=0)
            return
        self._file = _open(path)
        self.num_written, self.num_errors, end, self.last_line = _count_lines(self._file)
        _cut(self._file, end)
        self._ahead_file = _open(self._ahead_path)
        _cut(self._ahead_file, self._read_ahead(self._ahead_file))
        self.num_errors += sum(map(is_error, self._ahead.values()))
        self._write_in_order()

    @property
    def num_ahead(self) -> int:
        return len(self._ahead)

    def has(self, index: int) -> bool:
        """Whether the question of this index, from 0, is answered."""
        return index < self.num_written or index in self._ahead

    def put(self, index: int, line: bytes) -> None:
        """Takes an answer, without its newline; `flush` writes it."""
        self._ahead[index] = line
        self._new.append((index, line))
        self.num_errors += is_error(line)

    def flush(self) -> None:
        """Writes what was put; raises `FileError` if nobody reads the pipe any more."""
        try:
            self._write_in_order()
        except BrokenPipeError:
            raise FileError(f"{self._file.name}: nobody reads the answers any more") from None
        new = [(index, line) for index, line in self._new if index in self._ahead]
        self._new.clear()
        if self._ahead_file is None:
            return
        if not self._ahead:
            if self._ahead_file.tell():
                _cut(self._ahead_file, 0)
        elif new and self._ahead_file.tell() > _MAX_AHEAD_BYTES:
            old, self._ahead_file = self._ahead_file, self._rewritten_ahead()
            old.close()
        elif new:
            _write(self._ahead_file, b"".join(b"%d\t%s\n" % item for item in new))

    def close(self) -> None:
        """Writes what was put, closes, and deletes the second file if it is empty."""
        self.flush()
        self._file.close()
        if self._ahead_file is not None:
            self._ahead_file.close()
            if not self._ahead:
                self._ahead_path.unlink(missing_ok=True)

    def _write_in_order(self) -> None:
        lines = []
        while (line := self._ahead.pop(self.num_written, None)) is not None:
            lines.append(line + b"\n")
            self.last_line = line
            self.num_written += 1
        if lines:
            _write(self._file, b"".join(lines))

    def _read_ahead(self, file: BinaryIO) -> int:
        """Reads the second file; returns where its last whole line ends."""
        end = 0
        for record in file:
            index, _, line = record[:-1].partition(b"\t")
            if not (record.endswith(b"\n") and index.isdigit()):
                break
            if int(index) >= self.num_written:
                self._ahead[int(index)] = line
            end += len(record)
        return end

    def _rewritten_ahead(self) -> BinaryIO:
        """Drops answers that are in order by now; a kill leaves the old file or the new."""
        temporary = self._ahead_path.with_name(self._ahead_path.name + ".new")
        temporary.write_bytes(b"".join(b"%d\t%s\n" % item for item in self._ahead.items()))
        temporary.replace(self._ahead_path)
        file = _open(self._ahead_path)
        file.seek(0, os.SEEK_END)
        return file


def _open(path: Path) -> BinaryIO:
    path.touch()
    return path.open("r+b", buffering=0)


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _cut(file: BinaryIO, size: int) -> None:
    file.truncate(size)
    file.seek(size)


def _count_lines(file: BinaryIO) -> tuple[int, int, int, bytes | None]:
    """Whole lines, the error answers among them, where the last one ends, and that line."""
    count, errors, end, last, tail = 0, 0, 0, None, b""
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        *lines, tail = (tail + chunk).split(b"\n")
        if lines:
            last = lines[-1]
        count += len(lines)
        errors += sum(map(is_error, lines))
        end += sum(map(len, lines)) + len(lines)
    return count, errors, end, last
