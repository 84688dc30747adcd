"""Files of answers: a record of whose they are, locked during a run; what `collect` writes.

    answers.jsonl.run     {"questions":"questions.jsonl","num_bytes":8100,"sha256":"5d0f…",
                           "collection":null}

An answer of `run` belongs to the question of the same line, so a run resumes only with the
questions that it began with, and the same collection. Further questions may have been added at the
end of their file. In `collect`'s file a line is the answer as it was published, with the job's
`message_id` first. A line that was cut short by a kill is dropped when the file is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from qa_service.programs.jobs.questions_file import FileError

CHUNK_BYTES = 1 << 20
"""What is read of a file at a time: it may be larger than the memory."""


class _Record(msgspec.Struct):
    """A file of questions, with its length and hash at the time, and what answers all of them.

    Attributes:
        collection: None if each question names its text.
    """

    questions: str
    num_bytes: int
    sha256: str
    collection: str | None


def ahead_of(output: Path) -> Path:
    return output.with_name(output.name + ".ahead")


def lock(file: BinaryIO, path: Path) -> None:
    """Locks a file until this process ends; `FileError` if another has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(f"{path}: another run is writing to it") from None


def claim(output: Path, questions: Path, collection: str | None) -> BinaryIO:
    """Reserves a file of answers for this run, until what is returned is closed.

    Raises:
        FileError: Another run writes to the answers, or they belong to other questions.
        OSError: A file cannot be read or written.
    """
    path = output.with_name(output.name + ".run")
    if not path.exists():
        _known(output, path, b"")  # refuses before a file is made
    path.touch()
    file = path.open("r+b", buffering=0)
    try:
        lock(file, output)
        former = file.read()
        known = _known(output, path, former)
        if known and known.collection != collection:
            whose = f"from the collection {known.collection}" if known.collection else "from texts"
            raise FileError(f"{output} holds answers {whose}; name another --output")
        record = _make_record(output, questions, known, collection)
        file.seek(0)
        # Never cut first: on a full disk, or after a kill, nothing would say whose the answers are.
        file.write(msgspec.json.encode(record).ljust(len(former) - 1) + b"\n")
    except BaseException:
        file.close()
        raise
    return file


def _known(output: Path, path: Path, record: bytes) -> _Record | None:
    """Of which questions the answers are, as the file at `path` says; None without answers."""
    ahead = ahead_of(output)
    if not output.exists():
        ahead.unlink(missing_ok=True)
    if not any(path.exists() and path.stat().st_size for path in (output, ahead)):
        return None
    try:
        return msgspec.json.decode(record, type=_Record)
    except (msgspec.DecodeError, RecursionError):
        words = f"{output} is there, and {path} does not say of what questions"
        raise FileError(f"{words}; name another --output") from None


def _make_record(
    output: Path, questions: Path, known: _Record | None, collection: str | None
) -> _Record:
    digest, num_bytes = hashlib.sha256(), 0
    with questions.open("rb") as file:
        if known:
            num_bytes = _feed(digest, file, known.num_bytes)
            if (num_bytes, digest.hexdigest()) != (known.num_bytes, known.sha256):
                raise FileError(
                    f"{output} holds answers to {known.questions}, which was another "
                    f"file or has changed; name another --output"
                )
        num_bytes += _feed(digest, file, os.fstat(file.fileno()).st_size - num_bytes)
    return _Record(questions.name, num_bytes, digest.hexdigest(), collection)


def _feed(digest: hashlib._Hash, file: BinaryIO, num_bytes: int) -> int:
    """Hashes up to this many bytes; returns how many it read."""
    left = num_bytes
    while left > 0 and (chunk := file.read(min(left, CHUNK_BYTES))):
        digest.update(chunk)
        left -= len(chunk)
    return num_bytes - left


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
