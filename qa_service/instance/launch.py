"""Starts the program of an instance, and what that program does first.

    python -m MODULE FD PARENT LEVEL FORMAT

The process is a fresh interpreter, so that CUDA and fork never meet.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence

from qa_service.child_program import end_with_parent, inherited_socket, start_program
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.devices import CPU
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions, configure_logging

WORKER_PROGRAM = "qa_service.instance.worker_main"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def launch(
    program: str, setup: Setup, logs: LogOptions
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the program of an instance; returns its process and the loop's end of the channel."""
    environment = {
        **environment_of_libraries(setup),
        "CUDA_VISIBLE_DEVICES": setup.device.visible_as,
    }
    return start_program(program, logs.log_level, logs.log_format, environment=environment)


def environment_of_libraries(setup: Setup) -> dict[str, str]:
    """What the libraries under a model read once, when they load, in an instance's process."""
    return {
        **dict.fromkeys(_THREAD_VARIABLES, str(setup.options.intra_op_num_threads)),
        # On a CPU its threads would only take the model's cores.
        "TOKENIZERS_PARALLELISM": "false" if setup.device.device == CPU else "true",
    }


def begin(arguments: Sequence[str]) -> WorkerChannel:
    """Makes this process an instance's program; returns its end of the channel."""
    descriptor, parent, log_level, log_format = arguments
    end_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(log_level, log_format)
    return WorkerChannel(inherited_socket(int(descriptor)))
