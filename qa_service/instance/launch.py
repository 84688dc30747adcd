"""Starts the program of an instance.

The process is a fresh interpreter, so that CUDA and fork never meet. The libraries under a model
read their environment variables when they load, so the variables are set when the process starts.
"""

from __future__ import annotations

import socket
import subprocess

from qa_service.child_program import start_program
from qa_service.instance.devices import CPU
from qa_service.instance.messages import Setup
from qa_service.logs import LogOptions

WORKER_PROGRAM = "qa_service.instance.worker_main"


_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def launch(
    program: str, setup: Setup, logs: LogOptions
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the program of an instance; returns its process and the loop's end of the channel.

    Raises:
        OSError: It cannot be started.
    """
    environment = {
        **dict.fromkeys(_THREAD_VARIABLES, str(setup.options.intra_op_num_threads)),
        "CUDA_VISIBLE_DEVICES": setup.device.visible_as,
        # On a CPU its threads would only take the model's cores.
        "TOKENIZERS_PARALLELISM": "false" if setup.device.device == CPU else "true",
    }
    return start_program(program, logs.log_level, logs.log_format, environment=environment)
