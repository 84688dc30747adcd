"""mosec in front of the same instances: a worker process each, JSON over HTTP.

    python -m benchmarks.servers.mosec_server --port 8000 --batch 8

mosec reads `--port` and `--timeout` from the command line itself.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import mosec

from benchmarks.servers.reading import (
    answers,
    decode,
    encode,
    instant_answer,
    set_batch_size,
    warm_reader,
)
from qa_service.wire.messages import Question

TIMEOUT_MS = 120_000
THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class JsonWorker(mosec.Worker):
    """Parses and writes JSON as the server does, which is quicker than mosec's own way."""

    def deserialize(self, data: bytes) -> Question:
        return decode(data)

    def serialize(self, data: Any) -> bytes:
        return encode(data)


class QaWorker(JsonWorker):
    def __init__(self) -> None:
        self._reader = warm_reader()

    def forward(self, data: Any) -> Any:
        """One question, or a list of them where mosec batches."""
        if isinstance(data, list):
            return answers(self._reader, data)
        return answers(self._reader, [data])[0]


class InstantWorker(JsonWorker):
    def forward(self, data: Any) -> Any:
        if isinstance(data, list):
            return [instant_answer(question) for question in data]
        return instant_answer(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--wait_ms", type=int, default=10)
    parser.add_argument("--instant", action="store_true")
    flags, _ = parser.parse_known_args()
    sys.argv += ["--timeout", str(TIMEOUT_MS)]  # its own 3 s would fail long queues of long texts
    set_batch_size(flags.batch)
    server = mosec.Server()
    server.append_worker(
        InstantWorker if flags.instant else QaWorker,
        num=flags.sessions,
        max_batch_size=flags.batch,
        max_wait_time=flags.wait_ms,
        env=[THREADS] * flags.sessions,
    )
    server.run()


if __name__ == "__main__":
    main()
