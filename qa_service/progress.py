"""How far a long job is: a bar in a terminal; in a log, a line now and then."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

LINE_INTERVAL_S = 10.0
"""Between two lines in a log; a job that is over sooner writes none."""


def progress_bar(**options: Any) -> tqdm:  # noqa: ANN401 - tqdm's
    """A bar on standard error, with tqdm's options."""
    if sys.stderr.isatty():
        return tqdm(**options)
    interval_s = LINE_INTERVAL_S
    how = {"mininterval": interval_s, "delay": interval_s, "leave": False, "ncols": 80}
    return tqdm(file=_Lines(sys.stderr), **{**options, **how})


class _Lines:
    """A stream on which what would overwrite a line is a separate line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()
