"""A file of answers in the order of their questions, written as they come, safe against a kill.

    answers.jsonl         line n answers question n; it grows at its end only
    answers.jsonl.ahead   answers that arrived before their turn: "n <tab> line"

Both are written in the turn in which answers arrive, so a program that is killed loses only the
questions in flight, and resumes from both files. A line that was cut short is dropped. `put` and
`flush` are cheap: one `write` to each file for all answers of a turn.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from qa_service.programs.jobs.answers_file import CHUNK_BYTES, ahead_of
from qa_service.programs.jobs.job import is_error
from qa_service.programs.jobs.questions_file import FileError

_MAX_AHEAD_BYTES = 1 << 24
"""Above this, the second file is rewritten without the answers that are in order by now."""


class OrderedOutput:
    """The two files, whose content is kept.

    Attributes:
        num_written: Lines in order: questions below this index are answered.
        num_errors: Error answers in both files.
        last_line: The last line in order; None if there is none.
    """

    def __init__(self, path: Path) -> None:
        self._ahead_path = ahead_of(path)
        self._file = _open(path)
        self.num_written, self.num_errors, end, self.last_line = _count_lines(self._file)
        _cut(self._file, end)
        self._ahead: dict[int, bytes] = {}
        self._ahead_file = _open(self._ahead_path)
        _cut(self._ahead_file, self._read_ahead())
        self.num_errors += sum(map(is_error, self._ahead.values()))
        self._new: list[tuple[int, bytes]] = []
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
        """Writes what was put."""
        self._write_in_order()
        new = [(index, line) for index, line in self._new if index in self._ahead]
        self._new.clear()
        if not self._ahead:
            if self._ahead_file.tell():
                _cut(self._ahead_file, 0)
        elif new:
            if self._ahead_file.tell() > _MAX_AHEAD_BYTES:
                self._rewrite_ahead()
            else:
                _write(self._ahead_file, b"".join(b"%d\t%s\n" % item for item in new))

    def close(self) -> None:
        """Writes what was put, closes, and deletes the second file if it is empty."""
        self.flush()
        self._file.close()
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

    def _read_ahead(self) -> int:
        """Reads the second file; returns where its last whole line ends."""
        self._ahead_file.seek(0)
        end = 0
        for record in self._ahead_file:
            index, _, line = record[:-1].partition(b"\t")
            if not (record.endswith(b"\n") and index.isdigit()):
                break
            if int(index) >= self.num_written:
                self._ahead[int(index)] = line
            end += len(record)
        return end

    def _rewrite_ahead(self) -> None:
        """Drops answers that are in order by now; a kill leaves the old file or the new."""
        temporary = self._ahead_path.with_name(self._ahead_path.name + ".new")
        temporary.write_bytes(b"".join(b"%d\t%s\n" % item for item in self._ahead.items()))
        temporary.replace(self._ahead_path)
        self._ahead_file.close()
        self._ahead_file = _open(self._ahead_path)
        self._ahead_file.seek(0, os.SEEK_END)


class StreamedOutput(OrderedOutput):
    """The answers in their order to a pipe or a device, which keeps none to resume from."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.num_written = self.num_errors = 0
        self.last_line = None
        self._ahead = {}
        self._new = []

    def flush(self) -> None:
        """Writes those whose turn it is; raises `FileError` if nobody reads the pipe any more."""
        try:
            self._write_in_order()
        except BrokenPipeError:
            raise FileError(f"{self._file.name}: nobody reads the answers any more") from None
        self._new.clear()

    def close(self) -> None:
        """The same, and closes."""
        self.flush()
        self._file.close()


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
