"""Makes a worker misbehave when a question asks for it, or a program wait at its start.

Python imports a module of this name at its start. A test puts this folder on the `PYTHONPATH`
of a server, whose workers inherit it; in a worker, and nowhere else, it wraps
`InstantReader.answer`. The product knows nothing of it. What the markers do is in `FAULTS`.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

SLOW_S = 0.3
SPARE_BYTES = 1 << 28
FORK_S = 600


def raise_exception():
    raise RuntimeError("the engine failed, as it was asked to")


def run_out_of_memory():
    """Asks for more than a limit allows, which in Python is a `MemoryError`."""
    held_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + SPARE_BYTES, limits[1]))
    try:
        bytearray(2 * SPARE_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def die_with_a_fork():
    """Leaves a fork behind, which could keep the worker's channel open for minutes."""
    if not (pid := os.fork()):
        signal.alarm(FORK_S)
        signal.pause()
    print(f"forked {pid}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hang_in_c():
    """Holds the interpreter for ever: no Python signal handler, no other thread runs."""
    while True:
        ctypes.PyDLL(None).pause()


def wait_for_permit(folder):
    """Takes a file away; which process gets which does not matter."""
    while True:
        for permit in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                permit.unlink()
                return
        time.sleep(0.01)  # a folder has no event without more than the standard library


FAULTS = {
    "!!kill!!": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "!!segfault!!": lambda: ctypes.string_at(0),
    "!!sigterm!!": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "!!exit!!": lambda: os._exit(0),
    "!!sys_exit!!": lambda: sys.exit(0),
    "!!exception!!": raise_exception,
    "!!memory!!": run_out_of_memory,
    "!!abort!!": os.abort,  # what becomes of a C++ `bad_alloc` that nobody catches
    "!!hang!!": hang_in_c,
    "!!fork!!": die_with_a_fork,
    "!!slow!!": lambda: time.sleep(SLOW_S),
}


def install():
    from qa_service.instance.reader.instant import InstantReader

    score = InstantReader.score

    def faulty_score(self, encoded, stopwatch):
        for task in encoded:
            for marker, fault in FAULTS.items():
                if marker in task.question:
                    fault()
        return score(self, encoded, stopwatch)

    InstantReader.score = faulty_score


def compute_wrongly(damage):
    """Has the ONNX engine do what the file says, as long as it is there.

    `stale`: it returns the results of the run before, cut to shape, as a CUDA program does that
    was not run. `wrong`: its logits are scaled.
    """
    from qa_service.instance.engines.onnx import OnnxEngine

    run = OnnxEngine._run
    last = []

    def damaged_run(self, ids, mask, types):
        start, end = run(self, ids, mask, types)
        kind = damage.read_text() if damage.exists() else ""
        if kind == "stale" and last:
            return tuple(np_resize(one, ids.shape) for one in last)
        last[:] = start, end
        return (start * 1.5, end * 1.5) if kind == "wrong" else (start, end)

    def np_resize(array, shape):
        import numpy as np

        return np.resize(array, shape)

    OnnxEngine._run = damaged_run


program, _, permits = os.environ.get("QA_TEST_PERMITS", "").partition(":")
if program and program in sys.orig_argv:
    wait_for_permit(Path(permits))
if "qa_service.instance.worker_main" in sys.orig_argv:
    install()
    if "QA_TEST_DAMAGE" in os.environ:
        compute_wrongly(Path(os.environ["QA_TEST_DAMAGE"]))
