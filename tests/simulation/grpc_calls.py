"""gRPC calls: what they ask, and what grpcio does for them on both sides.

A call is one `ModelInfer`, or one `ModelStreamInfer` with all its requests sent at once. Its caller
may cancel it, and may give it a deadline, at which grpcio cancels it. Where the gateway dies or
nobody listens, grpcio tells the caller UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from qa_service.sidecars.grpc_gateway.grpc_messages import ModelInferRequest
from tests.simulation import checks
from tests.simulation.clients import Client, ClientPlan
from tests.simulation.gateway import GatewayProgram
from tests.simulation.questions import Subject
from tests.simulation.wires import Asked, Reply
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.run import Simulation
_STATUS_BY_WORDS = {"there is no": 404, "has no version": 404, "token": 401}
"""An error in a stream has no code, but words; with others it is 503."""


@dataclass(frozen=True)
class CallPlan:
    """A call.

    Attributes:
        is_known: Whether the server takes its token.
        requests: What each asks; more than one only in a stream.
        deadline_s: After its beginning; None for never.
        cancel_s: When its caller cancels it.
    """

    peer: str
    token: str
    is_known: bool
    requests: tuple[tuple[Subject, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)
    is_stream: bool = False
    deadline_s: float | None = None
    cancel_s: float | None = None


class Call:
    """A call under way: its caller, and what the gateway takes for its context.

    Attributes:
        key: Its peer and token.
        is_handled: Whether the gateway has begun to answer it.
        waiting: What is not answered, by the requests' ids.
    """

    def __init__(self, plan: CallPlan, sim: Simulation) -> None:
        self.plan = plan
        self.key = plan.peer, plan.token
        self.is_handled = False
        timeouts = [plan.options.get("timeout_ms"), (plan.deadline_s or 0) * 1e3]
        timeout_ms = min(filter(None, timeouts), default=None)
        options = {**plan.options, **({"timeout_ms": timeout_ms} if timeout_ms else {})}
        self.waiting = {str(number): Asked("infer", subjects, options)
                        for number, subjects in enumerate(plan.requests)}  # fmt: skip
        client_plan = ClientPlan("grpc", plan.token if plan.is_known else "wrong")
        self.client = Client(client_plan, sim.network, sim)
        self.reasons: set[str] = set()
        self._sim, self._gateway = sim, sim.gateway
        self._unread = deque(_message(number, subjects, plan.options)
                             for number, subjects in enumerate(plan.requests))  # fmt: skip
        self._is_cancelled = self._is_over = self._is_lost = False
        self._ends_s = sim.world.time_s + (plan.deadline_s or float("inf"))
        self._error = ("", "")
        self._on_done = []

    # The caller's side.

    def begin(self) -> None:
        """Makes the call."""
        for asked in self.waiting.values():
            asked.sent_s = self._sim.world.time_s
            self._sim.on_sent(self, asked)
        self._gateway.calls.append(self)
        if not self._gateway.takes_calls:
            self.lose()
            return
        program = self._gateway.program
        task = program.loop.create_task(self._run(program))
        task.add_done_callback(self._end)
        if self.plan.deadline_s is not None:
            program.loop.call_later(self.plan.deadline_s, task.cancel)
        if self.plan.cancel_s is not None:
            program.loop.call_later(self.plan.cancel_s, self._cancel, task)

    def lose(self) -> None:
        """Ends, as there is no gateway."""
        checks.check_lost(self._sim, self)
        self._over("unavailable", "the gateway has died")
        self._is_lost = True

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._is_cancelled = True
        for asked in self.waiting.values():
            asked.is_cancelled = True
        task.cancel()

    async def _run(self, program: GatewayProgram) -> None:
        self.is_handled = True
        if self.plan.is_stream:
            await program.rpcs.handler("ModelStreamInfer").stream_stream(None, self)
        else:
            answer = program.rpcs.handler("ModelInfer").unary_unary
            self._take(await answer(self._unread.popleft(), self))

    def _end(self, task: asyncio.Task[None]) -> None:
        for callback in self._on_done:
            callback(self)
        code, message = "", ""
        if task.cancelled():
            code = "cancelled" if self._is_cancelled else "deadline_exceeded"
        elif isinstance(task.exception(), grpc.aio.AbortError):
            code, message = self._error
        elif error := task.exception():
            raise error
        self._sim.world.soon(partial(self._over, code, message))

    def _over(self, code: str, message: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._gateway.calls.remove(self)
        if self.waiting and not code:
            raise Violation("unanswered", f"a call is over without an answer to {self.waiting}")
        for request_id in list(self.waiting):
            self._tell(request_id, code, message)

    def _take(self, response) -> None:
        """Takes a response from the gateway."""
        self._sim.world.soon(partial(self._tell, response.id, response=response))

    def _tell(self, request_id: str, code: str = "", message: str = "", response=None) -> None:
        if self._is_lost:
            return
        asked = self.waiting.pop(request_id, None)
        if asked is None:
            raise Violation("twice", f"a response to nothing, or a second one: {response}")
        reply = Reply(asked, code, message=message, body=message)
        if response is not None:
            rows = list(_rows(response))[:: asked.subjects[0].top_k]
            model, version = response.model_name, int(response.model_version)
            reply = Reply(asked, "", rows, model, version)
        checks.check_call(self._sim, self, reply)
        self._sim.on_reply(self, reply)

    # What the gateway calls: grpcio's `ServicerContext`.

    def invocation_metadata(self):
        return (("authorization", f"Bearer {self.plan.token}"),) if self.plan.token else ()

    def peer(self):
        return self.plan.peer

    def time_remaining(self):
        left_s = self._ends_s - self._sim.world.time_s
        return max(0.0, left_s) if self.plan.deadline_s else None

    def add_done_callback(self, callback):
        self._on_done.append(callback)

    async def abort(self, code, message, trailers):
        self._error = dict(trailers)["qa-error"], message
        checks.check_links_full(self._sim, self, message)
        raise grpc.aio.AbortError

    async def read(self):
        return self._unread.popleft() if self._unread else grpc.aio.EOF

    async def write(self, message):
        if message.error_message:
            found = (s for words, s in _STATUS_BY_WORDS.items() if words in message.error_message)
            its = (message.infer_response.id, f"http {next(found, 503)}", message.error_message)
            self._sim.world.soon(partial(self._tell, *its))
        else:
            self._take(message.infer_response)


def _message(number: int, subjects: Sequence[Subject], options: dict[str, Any]) -> bytes:
    message = ModelInferRequest(id=str(number), model_name=options.get("model", "a"))
    message.model_version = str(options.get("version", ""))
    message.parameters["top_k"].int64_param = subjects[0].top_k
    if timeout_ms := options.get("timeout_ms"):
        message.parameters["timeout"].int64_param = max(1, int(timeout_ms * 1000))
    for name in ("question", "text"):
        column = [getattr(subject, name).encode() for subject in subjects]
        tensor = message.inputs.add(name=name, datatype="BYTES", shape=[len(column)])
        tensor.contents.bytes_contents.extend(column)
    return message.SerializeToString()


def _rows(response) -> Iterator[tuple[str, float, int | None, int | None]]:
    its = {output.name: output.contents for output in response.outputs}
    columns = (its["answer"].bytes_contents, its["score"].fp32_contents,
               its["start"].int_contents, its["end"].int_contents)  # fmt: skip
    for answer, score, start, end in zip(*columns, strict=True):
        is_none = start < 0
        yield answer.decode(), round(score, 4), None if is_none else start, None if is_none else end
