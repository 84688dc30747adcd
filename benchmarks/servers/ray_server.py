"""Ray Serve in front of the same instances: a replica each, JSON over HTTP.

python -m benchmarks.servers.ray_server --port 8000 --batch 8
"""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.servers.reading import set_batch_size

OBJECT_STORE_BYTES = 100 << 20


class Instant:
    """A replica that answers at once, without a model."""

    def __init__(self) -> None:
        from benchmarks.servers import reading  # noqa: PLC0415 - in the replica's process

        self._reading = reading

    async def __call__(self, request: Request) -> Response:
        question = self._reading.decode(await request.body())
        return self._response(await self._answer(question))

    async def _answer(self, question: Any) -> dict[str, Any]:
        return self._reading.instant_answer(question)

    def _response(self, answer: dict[str, Any]) -> Response:
        """Written like everyone's, and with its length: what is only returned is sent in chunks."""
        return Response(self._reading.encode(answer), media_type="application/json")


class Unbatched(Instant):
    """A replica that answers one question at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = self._reading.warm_reader()

    async def _answer(self, question: Any) -> dict[str, Any]:
        return self._reading.answers(self._reader, [question])[0]


class Batched(Unbatched):
    """A replica that answers what has come in the meantime together."""

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.01)  # type: ignore[untyped-decorator]
    async def _answers(self, questions: list[Any]) -> list[Any]:
        return self._reading.answers(self._reader, questions)

    def reconfigure(self, batching: dict[str, Any]) -> None:
        self._answers.set_max_batch_size(batching["size"])
        self._answers.set_batch_wait_timeout_s(batching["wait_s"])

    async def _answer(self, question: Any) -> dict[str, Any]:
        return await self._answers(question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--wait_ms", type=int, default=10)
    parser.add_argument("--max_ongoing_requests", type=int, default=5)
    parser.add_argument("--instant", action="store_true")
    flags = parser.parse_args()
    set_batch_size(flags.batch)  # the replicas inherit it
    ray.init(
        "local",  # a cluster of its own, whatever runs here
        num_cpus=flags.sessions,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": flags.port})
    kind = Instant if flags.instant else Batched if flags.batch > 1 else Unbatched
    batching = {"size": flags.batch, "wait_s": flags.wait_ms / 1e3}
    deployment = serve.deployment(
        kind,
        num_replicas=flags.sessions,
        max_ongoing_requests=flags.max_ongoing_requests,
        user_config=batching if kind is Batched else None,
        ray_actor_options={"num_cpus": 1},
    )
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    serve.run(deployment.bind(), route_prefix="/")
    stopped.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
