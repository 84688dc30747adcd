"""The file that `jobs.py collect` writes: a line of JSON an answer, each job's once.

A line is the answer as it was published, with the job's `message_id` first. A line that was cut
short by a kill is dropped when the file is opened again.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from qa_service.programs.jobs.claim import lock
from qa_service.programs.jobs.questions_file import FileError


class _Named(msgspec.Struct):
    message_id: str


_name_decoder = msgspec.json.Decoder(_Named)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


class AnswersFile:
    """The file, open for more.

    Raises:
        FileError: A line is not an answer to a job, or another program adds to the file.
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        lock(self._file, path)
        self.names, end = read_names(path)
        os.truncate(path, end)

    def add(self, message_id: str, body: bytes) -> bool:
        """Adds an answer; returns False for a second one, or a body that is not an answer."""
        if message_id in self.names:
            return False
        try:
            fields = _fields_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return False
        self.names.add(message_id)
        self._file.write(_encoder.encode({"message_id": message_id, **fields}) + b"\n")
        return True

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_names(path: Path) -> tuple[set[str], int]:
    """The `message_id` of each answer in a file, and where its last whole line ends.

    Raises:
        FileError: A line is not an answer to a job.
        OSError: The file cannot be read.
    """
    names, end = set(), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                names.add(_name_decoder.decode(line).message_id)
            except (msgspec.DecodeError, RecursionError) as error:
                raise FileError(f"{path}, line {number}: {error}") from error
            end += len(line)
    return names, end
