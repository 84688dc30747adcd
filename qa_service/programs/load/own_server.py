"""Runs a server in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import qa_service

_PROGRAM = [sys.executable, "-P", "-m", "qa_service.server.main"]
_READY = "QA server ready on "
_STOP_TIMEOUT_S = 60.0
"""Twice a server's own drain timeout: one that takes longer hangs."""


class ServerStartError(Exception):
    """The server did not start; the message is the last line that it logged."""


class OwnServer:
    """Runs a server on a free port inside a `with` block, which begins when it is ready."""

    def __init__(self, host: str, flags: Sequence[str]) -> None:
        # Its lines are read here, whatever format of the log the flags or the environment ask for.
        self._command = [*_PROGRAM, "--host", host, "--port", "0", *flags, "--log_format", "text"]
        self.port = 0

    def __enter__(self) -> Self:
        # This module's package is first on the module path.
        here = str(Path(qa_service.__file__).resolve().parents[1])
        python_path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": python_path}
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True
        )
        try:
            self.port = self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()

    def _wait_until_ready(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_READY):
                return int(line.removeprefix(_READY).split(": ")[0].rpartition(":")[2])
        self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        last = lines[-1] if lines else f"exit code {self._process.returncode}"
        raise ServerStartError(f"the server did not start: {last}")
