"""Servers and engines whose memory runs short: errors are allowed, wrong answers are not.

OpenVINO may report no error for a run that could not allocate: without a look at its outputs, the
answer is that of the run before.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from harness.process import MIB
from harness.server import RunningServer, running_server
from qa_service.client import QaClient, QaClientError
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from tests.programs import run_python

NUM_CLIENTS, NUM_QUESTIONS = 8, 120
DEADLINE_MS = 3000
"""Of a question: instances that always end are started again with a backoff of up to 10 s."""
OPENVINO = ("--inference_engine_type", "openvino", "--precision", "fp32")
"""The engine that is silent; float32, so that a batch's company does not change an answer."""

SHORT_OF_MEMORY = """
import os, resource, sys
from contextlib import suppress
from pathlib import Path
import numpy as np
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.errors import EngineFaultError
from qa_service.instance.model_folder.manifest import load_manifest

model, kind, room_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
engine, reference = (
    make_engine(name, model, load_manifest(model), EngineConfig(static_shapes_bytes=2**30))
    for name in (kind, "onnx")
)
batches = [rng.integers(1000, 20000, shape) for shape in ((1, 48), (2, 64), (4, 64)) * 4]
right = [reference.logits(ids, np.ones_like(ids), np.zeros_like(ids)) for ids in batches]
del reference
engine.logits(batches[0], np.ones_like(batches[0]), np.zeros_like(batches[0]))
used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes, resource.RLIM_INFINITY))
freed = []  # an allocator keeps what was freed: the engine is not to find room there
for size in (2**22, 2**20, 2**18, 2**16):
    with suppress(MemoryError):
        while True:
            freed.append(np.empty(size, np.uint8))
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + room_bytes, resource.RLIM_INFINITY))
os.write(1, b"limited")
for ids, wanted in zip(batches, right):
    try:
        found = engine.logits(ids, np.ones_like(ids), np.zeros_like(ids))
    except EngineFaultError:
        outcome = b" fault"
    except Exception:
        outcome = b" error"
    else:
        is_right = np.abs(np.subtract(found, wanted)).max() < 1e-3
        outcome = b" right" if is_right else b" wrong"
    os.write(1, outcome)
"""


@pytest.mark.parametrize(
    ("kind", "room_bytes"),
    [("openvino", 0), ("openvino", 4 * MIB), ("onnx", 0), ("onnx", 4 * MIB),
     # PyTorch raises an error for each allocation that fails, and takes 12 s to load and to abort.
     *(pytest.param("pytorch", room, marks=pytest.mark.long) for room in (0, 4 * MIB))],
)  # fmt: skip
def test_an_engine_short_of_memory_gives_right_logits_or_fails(builtin_model, kind, room_bytes):
    done = run_python("-c", SHORT_OF_MEMORY, builtin_model, kind, room_bytes)
    said = done.stdout.split()
    outcomes = said[1:]
    assert said[:1] == ["limited"], done
    assert "wrong" not in outcomes, done
    # An allocation that fails in a thread of the engine may end the process: its worker's death.
    has_ended = done.returncode != 0
    assert has_ended or len(outcomes) == 12, done
    if not room_bytes:
        assert has_ended or set(outcomes) != {"right"}, "it was not short of memory"


@dataclass
class Count:
    """How a server's answers compare with what they should be."""

    right: int = 0
    errors: int = 0
    wrong: list[str] = field(default_factory=list)


def questions():
    items = read_squad(OWN_QUESTIONS)
    return [(item.question, item.context) for item in items]


@pytest.fixture(scope="module")
def right_answers(builtin_model):
    with running_server(builtin_model, *OPENVINO) as server, QaClient(port=server.port) as client:
        return {asked: client.ask(*asked).answer for asked in questions()}


def ask_all(server: RunningServer, right_answers, count: Count, first: int) -> None:
    """One of the clients: its share of the questions, in a different order than the others'."""
    asked = list(right_answers)
    with QaClient(port=server.port) as client:
        for number in range(first, NUM_QUESTIONS, NUM_CLIENTS):
            one = asked[number % len(asked)]
            try:
                answer = client.ask(*one, timeout_ms=DEADLINE_MS).answer
            except QaClientError:
                count.errors += 1
                continue
            if answer == right_answers[one]:
                count.right += 1
            else:
                count.wrong.append(f"{one[0]!r}: {answer!r}, not {right_answers[one]!r}")


def answers_within(mib: int, model, right_answers) -> Count | None:
    """Asks a server that may have so much memory; None if it cannot start with that."""
    try:
        server = RunningServer(model, *OPENVINO, wrapper=("prlimit", f"--as={mib * MIB}"))
    except AssertionError:
        return None
    count = Count()
    try:
        with ThreadPoolExecutor(NUM_CLIENTS) as threads:
            asking = [
                threads.submit(ask_all, server, right_answers, count, number)
                for number in range(NUM_CLIENTS)
            ]
        for one in asking:
            one.result()
    finally:
        server.close()
    print(f"{mib} MiB: {count.right} right, {count.errors} errors, {len(count.wrong)} wrong")
    return count


@pytest.mark.long
@pytest.mark.parametrize("mib", range(400, 1601, 50))
def test_no_amount_of_memory_gives_wrong_answers(builtin_model, right_answers, mib):
    count = answers_within(mib, builtin_model, right_answers)
    assert not count or not count.wrong
