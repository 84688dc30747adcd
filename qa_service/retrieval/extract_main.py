"""The process that reads files: a hostile file costs bounded memory and time, and no more.

    python -P -m qa_service.retrieval.extract_main PARENT MAX_MEMORY_BYTES FOLDER

takes `ReadFile` orders on its standard input, a line of JSON each, and writes to its standard
output the file's documents, cut into passages, and faults and then null, likewise. A document that
takes more processor time than it may, for both, ends the process by SIGXCPU; `Extractor`, in its
parent, sees that and starts another. The kernel ends it with its parent, whatever it reads. What it
writes for LibreOffice is in the folder, which the next run removes if nobody else has.
"""

from __future__ import annotations

import gc
import gzip
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import BinaryIO, cast

import msgspec

from qa_service.child_program import command_of, end_with_parent, environment_of_programs
from qa_service.files import open_regular
from qa_service.locked_folder import LockedFolder
from qa_service.retrieval.documents import (
    Document,
    Fault,
    Message,
    ReadFile,
    ReadLimits,
    UnreadableError,
)
from qa_service.retrieval.files import SourceFile, format_of
from qa_service.retrieval.formats import FORMATS
from qa_service.retrieval.passages import cut

MAX_ORDERS = 3
"""Of a process: it reads one, and its pipe (64 KiB) holds the others, whatever their names."""

_decoder = msgspec.json.Decoder(Message)


def main() -> None:
    end_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    logging.disable()
    gc.set_threshold(50_000)  # words and elements, of which a page has thousands, are in no circles
    _limit(resource.RLIMIT_AS, int(sys.argv[2]))
    _limit(resource.RLIMIT_CORE, 0)
    tempfile.tempdir = sys.argv[3]
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no message
    try:
        for line in sys.stdin.buffer:
            for message in _messages(msgspec.json.decode(line, type=ReadFile)):
                _write(output, message)
            _write(output, None)
            output.flush()
    except BrokenPipeError:  # its parent has died
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)


def _write(output: BinaryIO, message: Message) -> None:
    output.write(msgspec.json.encode(message))
    output.write(b"\n")


def _limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _messages(order: ReadFile) -> Iterator[Document | Fault]:
    """A file's documents and faults; no exception that a file causes goes beyond this."""
    try:
        with _open(order.path) as stream:
            limits = order.limits
            documents = FORMATS[format_of(order.name)](stream, order.name, limits.max_file_bytes)
            while True:
                used_s = int(time.process_time())
                _limit(resource.RLIMIT_CPU, used_s + limits.max_document_cpu_s + 1)
                if (document := next(documents, None)) is None:
                    return
                if isinstance(document, Document):  # the blocks have done their part
                    passages = tuple(cut(document, order.passage_tokens))
                    document = msgspec.structs.replace(document, passages=passages, blocks=())
                yield document
    except UnreadableError as error:
        yield Fault(order.name, str(error))
    except OSError as error:
        yield Fault(order.name, error.strerror or str(error))
    except (EOFError, zlib.error) as error:
        yield Fault(order.name, f"not in gzip's format: {error}")
    except MemoryError:
        yield Fault(order.name, "reading it takes more memory than it may (--max_memory_bytes)")
    except RecursionError:
        yield Fault(order.name, "it is nested too deep")
    except Exception as error:  # whatever a parser comes to over bytes from anywhere
        yield Fault(order.name, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _open(path: bytes) -> BinaryIO:
    file = open_regular(path, follow_links=False)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.endswith(b".gz") else file


class Extractors:
    """Processes that read files ahead: each has the next files to read while it reads one.

    One waits while nobody takes what it has read: no more of that is kept than its pipe holds.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._extractors: list[Extractor] = []

    def read(
        self, file: SourceFile, passage_tokens: int, num_processes: int = 1
    ) -> Generator[Document | Fault]:
        """Has a file read, by the process that has fewest; yields as `Extractor.read` does.

        Args:
            num_processes: As many are started, at most.
        """
        are_busy = all(one.num_files for one in self._extractors)
        if len(self._extractors) < num_processes and are_busy:
            self._extractors.append(Extractor(self._limits))
        freest = min(self._extractors, key=lambda one: one.num_files)
        return freest.read(file, passage_tokens)

    def close(self) -> None:
        for extractor in self._extractors:
            extractor.close()


class Extractor:
    """The parent's side of `extract_main`."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._orders = deque[ReadFile]()
        """Of the files that are not yet read; a new process is given those of one that has died."""

    @property
    def num_files(self) -> int:
        """How many it has to read."""
        return len(self._orders)

    def read(self, file: SourceFile, passage_tokens: int) -> Generator[Document | Fault]:
        """Has a file read; yields its documents, cut into passages, as they come, and its faults.

        Files are taken in the order of the calls: a generator is read to its end, or closed, before
        the next one is. No more than `MAX_ORDERS` wait, since a process that waits to write does
        not read its orders.
        """
        order = ReadFile(os.fsencode(file.path), file.name, self._limits, passage_tokens)
        self._orders.append(order)
        if self._process is None:
            self._start()
        else:
            _give(self._process, order)
        return self._messages(file.name)

    def _messages(self, name: str) -> Generator[Document | Fault]:
        process = self._process or self._start()
        assert process.stdout is not None
        is_complete = False
        try:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # it has died while it wrote this
                message = _decoder.decode(line)
                if message is None:
                    is_complete = True
                    return
                yield message
            yield Fault(name, self._death(process.wait()))
        finally:
            self._orders.popleft()
            # One that has died while it read the next file is asked for that one's messages.
            if not is_complete or (process.poll() is not None and not self._orders):
                self.close()

    def _death(self, code: int) -> str:
        if code == -signal.SIGXCPU:
            limit_s = self._limits.max_document_cpu_s
            return f"reading it takes more than {limit_s} s of a processor (--max_document_cpu_s)"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGABRT:  # what libraries in C do without memory
            how += ", perhaps as it takes more memory than it may (--max_memory_bytes)"
        return f"the process that read it died: {how}"

    def _start(self) -> subprocess.Popen[bytes]:
        module = "qa_service.retrieval.extract_main"
        self._folder = LockedFolder("qa-index-")
        # NumPy would reserve memory for a thread of each processor, out of what it may have.
        self._process = subprocess.Popen(
            command_of(
                module, str(os.getpid()), str(self._limits.max_memory_bytes), str(self._folder.path)
            ),
            env=environment_of_programs()
            | {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for order in self._orders:
            _give(self._process, order)
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError), self._process:
                pass  # leaving it closes the pipes and waits
            self._folder.close()
            self._process = None


def _give(process: subprocess.Popen[bytes], order: ReadFile) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has died: its output ends
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()


if __name__ == "__main__":
    main()
