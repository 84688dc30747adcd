"""Reads files in a separate process; starts another process if a file kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress

import msgspec

from qa_service.retrieval.documents import (
    Document,
    Fault,
    Message,
    ReadFile,
    ReadLimits,
)
from qa_service.retrieval.files import SourceFile

_decoder = msgspec.json.Decoder(Message)


class Extractor:
    """The parent's side of `extract_main`."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, file: SourceFile, passage_tokens: int) -> Generator[Document | Fault]:
        """Yields a file's documents, cut into passages, as they are read, and its faults.

        Whoever stops before the end must close this generator before reading another file.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        order = ReadFile(os.fsencode(file.path), file.name, self._limits, passage_tokens)
        is_complete = False
        try:
            with suppress(BrokenPipeError):  # it has died: its output ends
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # it has died while it wrote this
                message = _decoder.decode(line)
                if message is None:
                    is_complete = True
                    return
                yield message
            yield Fault(file.name, self._death(process.wait()))
        finally:
            if not is_complete or process.poll() is not None:
                self.close()

    def _death(self, code: int) -> str:
        if code == -signal.SIGXCPU:
            limit_s = self._limits.max_document_cpu_s
            return f"reading it takes more than {limit_s} s of a processor (--max_document_cpu_s)"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the process that read it died: {how}"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            module = "qa_service.retrieval.extract_main"
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module, str(self._limits.max_memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError), self._process:
                pass  # leaving it closes the pipes and waits
            self._process = None
