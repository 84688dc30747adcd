"""The bridge between the loop and an actor on a Ray cluster, a program which `launch` starts.

It holds a worker's end of a channel and is a Ray driver. It forwards a batch's bytes unchanged, and
converts the start in results to this machine's clock. It ends when the loop closes the channel,
when the actor dies, and when the actor misses three pings in a row.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from qa_service.child_program import NO_TELEMETRY
from qa_service.errors import SetupError
from qa_service.installation import install_hint
from qa_service.instance.channel import WorkerChannel, begin, environment_of_libraries
from qa_service.instance.model_folder.manifest import fingerprint_of
from qa_service.instance.ray_instance import RayInstance, pack
from qa_service.instance.worker_messages import (
    Checked,
    Failed,
    Ready,
    Results,
    Setup,
    ToLoop,
    to_loop_decoder,
)

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
MAX_MISSED_PINGS = 3
"""Three seconds without a reply, so that a hung node's requests run elsewhere within five."""
CONCURRENT_BATCHES = 4
"""More than two, the most that an instance holds; so Ray never queues a batch."""
NODE_WAIT_LOG_S = 10.0
"""A start that waits longer for a node logs that; a node with room needs a few seconds."""
NODES_TIMEOUT_S = 2.0
"""How long the cluster may take to say which nodes it has."""


class Bridge:
    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._actor: Any = None
        self._node = ""

    def run(self) -> None:
        """Bridges until the loop closes the channel; a lost actor ends the process before."""
        setup = self._channel.receive()
        if not isinstance(setup, Setup):
            return
        try:
            self._actor, ready = self._start(setup)
        except SetupError as error:
            self._send(Failed(str(error), is_blameless=True))
            return
        self._send(ready)
        if isinstance(ready, Failed):
            return
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        run = self._actor.run.options(concurrency_group="run")
        while (batch := self._channel.receive_body()) is not None:
            reference = run.remote(batch)
            reference.future().add_done_callback(functools.partial(self._on_done, time.monotonic()))

    def _send(self, message: ToLoop) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._channel.send(message)

    def _start(self, setup: Setup) -> tuple[Any, Ready | Failed]:
        options = setup.options
        ray = _connect(options.ray_address)
        model_dir = Path(setup.model_dir).resolve()
        try:
            pushed = [ray.put(pack(model_dir))] if options.ray_push_model else []
        except ray.exceptions.RayError as error:
            raise SetupError(f"the model cannot be sent to Ray: {_one_line(error)}") from error
        setup = msgspec.structs.replace(
            setup,
            model_dir=str(model_dir),
            fingerprint=setup.fingerprint or fingerprint_of(model_dir),
        )
        actor = _make_actor(ray, setup)
        starting = actor.start.options(concurrency_group="run").remote(setup, pushed)
        node = actor.__ray_call__.options(concurrency_group="ping").remote(_node_of)
        if not ray.wait([node], timeout=NODE_WAIT_LOG_S)[0]:
            needs = f"{options.ray_num_cpus} CPUs and {options.ray_num_gpus:g} GPUs"
            logger.warning("waiting for a node of the Ray cluster with %s free", needs)
        try:
            ready = to_loop_decoder.decode(ray.get(starting))
            self._node, where = ray.get(node)
        except ray.exceptions.RayError as error:
            raise SetupError(f"an instance on Ray cannot be started: {_one_line(error)}") from error
        if isinstance(ready, Failed):
            return actor, msgspec.structs.replace(ready, is_blameless=True)
        if not isinstance(ready, Ready):
            raise SetupError("the actor does not speak our language")
        return actor, msgspec.structs.replace(ready, device=f"ray:{where}:{ready.device}")

    def _on_done(self, sent_s: float, future: Any) -> None:  # noqa: ANN401 - a Ray future
        """Sends results to the loop. Runs in a thread of Ray's."""
        if (error := future.exception()) is not None:
            # In another thread: `_end` may have to wait for this one.
            threading.Thread(target=self._end, args=[error], daemon=True).start()
            return
        body, came_s, went_s = future.result()
        results = to_loop_decoder.decode(body)
        if isinstance(results, Failed):
            self._send(results)
            os._exit(1)
        assert isinstance(results, Results | Checked)
        if isinstance(results, Results):
            # The clocks' offset, if both ways take equally long (RFC 5905, section 8).
            offset_s = ((came_s - sent_s) + (went_s - time.monotonic())) / 2
            started_s = max(sent_s, results.started_s - offset_s)
            results = msgspec.structs.replace(results, started_s=started_s)
        self._send(results)

    def _watch(self) -> None:
        import ray  # noqa: PLC0415 - not before it is known to be installed

        num_missed = 0
        while num_missed < MAX_MISSED_PINGS:
            next_s = time.monotonic() + PING_INTERVAL_S
            ping = self._actor.ping.options(concurrency_group="ping").remote()
            try:
                is_missed = not ray.wait([ping], timeout=PING_INTERVAL_S)[0]
                if not is_missed:
                    ray.get(ping)
            except Exception as error:  # with any error the actor is lost
                self._end(error)
                return
            num_missed = num_missed + 1 if is_missed else 0
            time.sleep(max(0.0, next_s - time.monotonic()))
        self._end(TimeoutError(f"its node is silent: {MAX_MISSED_PINGS} pings had no reply"))

    def _end(self, error: BaseException) -> None:
        """Reports the error, and ends the process with all its threads."""
        import ray.exceptions as kinds  # noqa: PLC0415 - not before it is known to be installed

        of_actor = kinds.ActorDiedError | kinds.OutOfMemoryError | kinds.RayTaskError
        is_blameless = not (isinstance(error, of_actor) and _is_alive(self._node))
        self._send(Failed(_one_line(error), is_blameless=is_blameless))
        os._exit(1)


def _is_alive(node: str) -> bool:
    """Whether the cluster responds and says that this node is alive: Ray's error does not tell."""
    import ray  # noqa: PLC0415

    found: Future[bool] = Future()

    def look() -> None:
        found.set_result(any(n["NodeID"] == node and n["Alive"] for n in ray.nodes()))

    threading.Thread(target=look, daemon=True).start()
    try:
        return found.result(NODES_TIMEOUT_S)
    except TimeoutError:
        return False


def _connect(address: str) -> Any:  # noqa: ANN401 - the module, which has no types
    """Connects to a cluster; one with another version of Ray refuses us."""
    try:
        import ray  # noqa: PLC0415 - to say in a line that it is not there
    except ImportError:
        raise SetupError(f"Ray is not installed: {install_hint('ray')}") from None
    try:
        ray.init(address, namespace="qa-server", log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:
        raise SetupError(f"no Ray cluster at {address}: {_one_line(error)}") from error
    return ray


def _make_actor(ray: Any, setup: Setup) -> Any:  # noqa: ANN401
    """An actor that dies with this process, and that Ray does not restart."""
    options = setup.options
    environment = {
        **environment_of_libraries(setup),
        **NO_TELEMETRY,
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return (
        ray.remote(concurrency_groups={"run": CONCURRENT_BATCHES, "ping": 1})(RayInstance)
        .options(
            num_cpus=options.ray_num_cpus,
            num_gpus=options.ray_num_gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": environment},
        )
        .remote()
    )


def _node_of(_: RayInstance) -> tuple[str, str]:
    """The id and address of the actor's node; runs in the actor."""
    import ray  # noqa: PLC0415

    return ray.get_runtime_context().get_node_id(), str(ray.util.get_node_ip_address())


def _one_line(error: BaseException) -> str:
    """An error of Ray's, which may fill a page, in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def main(arguments: Sequence[str]) -> None:
    channel = begin(arguments)
    Bridge(channel).run()
    channel.close()
    # The actor ends with its driver. Ray's shutdown can take long if the cluster is lost.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
