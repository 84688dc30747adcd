"""LitServe in front of the same instances: a worker process each, JSON over HTTP.

python -m benchmarks.servers.litserve_server --port 8000 --batch 8
"""

from __future__ import annotations

import argparse
from typing import Any

import litserve
import msgspec

from benchmarks.servers.reading import answers, set_batch_size, warm_reader
from qa_service.wire.messages import Question


class QaApi(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._reader = warm_reader()

    def decode_request(self, request):  # an annotation would tell LitServe how to parse it
        return msgspec.convert(request, Question)

    def predict(self, x: Question | list[Question]) -> Any:
        """One question, or a list of them where LitServe batches."""
        if isinstance(x, list):
            return answers(self._reader, x)
        return answers(self._reader, [x])[0]

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--wait_ms", type=int, default=0)
    flags = parser.parse_args()
    set_batch_size(flags.batch)
    server = litserve.LitServer(
        QaApi(max_batch_size=flags.batch, batch_timeout=flags.wait_ms / 1e3),
        accelerator="cpu",
        workers_per_device=flags.sessions,
        timeout=120,
    )
    server.run(host="127.0.0.1", port=flags.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
