"""What tritonclient gets out of the server, as perf_analyzer would load it, with no model behind.

    python -m benchmarks.http_triton

Each connection asks its next question when it has its answer, for some seconds; the client and its
connections are one process of gevent's, on the same cores, so its own cost bounds the rate. The
loop's time is the processor time of the server's own process, without its workers'.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gevent
import numpy as np
import tritonclient.http as triton

from benchmarks.machine import load_average, machine
from benchmarks.record import QUESTIONS_FILE
from benchmarks.tables import markdown, percentile
from harness.process import cpu_s
from harness.server import RunningServer, running_server
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.repository.options import DEFAULT_MODEL

INSTANT = ("--inference_engine_type", "instant")
CONNECTIONS = (1, 50)


def inputs_of(question: SquadQuestion, is_binary: bool) -> list[triton.InferInput]:
    inputs = []
    for name, words in (("question", question.question), ("text", question.context)):
        inputs.append(triton.InferInput(name, [1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([words], dtype=object), binary_data=is_binary)
    return inputs


def outputs_of(is_binary: bool) -> list[triton.InferRequestedOutput]:
    names = ("answer", "score", "start", "end")
    return [triton.InferRequestedOutput(name, binary_data=is_binary) for name in names]


def run(server: RunningServer, connections: int, is_binary: bool, duration_s: float) -> list[str]:
    """Loads the server, every connection with one question at a time.

    Returns:
        Answers a second, p50 and p99 in milliseconds, and the processor time of the server's own
        process for each answer, in microseconds.
    """
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=connections)
    asked = [inputs_of(question, is_binary) for question in read_squad(QUESTIONS_FILE)[:100]]
    outputs, latencies_ms = outputs_of(is_binary), []
    pid, end_s = server.process.pid, time.perf_counter() + duration_s

    def ask_on(number: int) -> None:
        while (began_s := time.perf_counter()) < end_s:
            number += 1
            client.infer("builtin", asked[number % len(asked)], outputs=outputs)
            latencies_ms.append((time.perf_counter() - began_s) * 1e3)

    before_s, began_s = cpu_s(pid), time.perf_counter()
    gevent.joinall([gevent.spawn(ask_on, n) for n in range(connections)], raise_error=True)
    per_s = len(latencies_ms) / (time.perf_counter() - began_s)
    loop_us = (cpu_s(pid) - before_s) / len(latencies_ms) * 1e6
    client.close()
    p50_ms, p99_ms = (percentile(latencies_ms, percent) for percent in (50, 99))
    return [f"{per_s:.0f}", f"{p50_ms:.2f}", f"{p99_ms:.2f}", f"{loop_us:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    print(f"{machine()}; load average {load_average()}\n")
    rows = []
    with running_server(flags.model, *INSTANT) as server:
        for is_binary in (True, False):
            run(server, CONNECTIONS[-1], is_binary, 1.0)  # warms up
            for connections in CONNECTIONS:
                figures = run(server, connections, is_binary, flags.duration_s)
                name = "binary" if is_binary else "JSON"
                rows.append([f"{name}, {connections} connections", *figures])
    print(markdown(["tritonclient", "answers/s", "p50, ms", "p99, ms", "loop, µs"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
