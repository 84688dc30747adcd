"""The worker's end of its channel, and how the program of an instance is started.

    python -m MODULE FD PARENT LEVEL FORMAT

The channel is a socketpair whose other end the loop selects on. Frames are a 4-byte big-endian
length and a body. End-of-file means that the other side has ended; the two share no lock that a
killed process could hold. The process is a fresh interpreter, so that CUDA and fork never meet.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

from qa_service.child_program import end_with_parent, inherited_socket, start_program
from qa_service.instance.devices import CPU
from qa_service.instance.worker_messages import (
    MAX_MESSAGE_BYTES,
    Setup,
    ToLoop,
    ToWorker,
    encode,
    to_worker_decoder,
)
from qa_service.logs import LogOptions, configure_logging
from qa_service.wire.frames import FrameReader, receive_frame

WORKER_PROGRAM = "qa_service.instance.worker_main"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerChannel:
    """The worker's end of the socketpair: blocking, one message at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._frames = FrameReader(MAX_MESSAGE_BYTES)

    def receive(self, on_arrival: Callable[[], object] = lambda: None) -> ToWorker | None:
        """Waits for the next message; None when the loop's end is closed.

        `on_arrival` is called when it is there, before it is decoded.
        """
        if (body := self.receive_body()) is None:
            return None
        on_arrival()
        message: ToWorker = to_worker_decoder.decode(body)
        return message

    def receive_body(self) -> bytes | None:
        """Waits for the next message's bytes; None when the loop's end is closed."""
        return receive_frame(self._frames, self._sock.recv)

    def send(self, message: ToLoop) -> None:
        self._sock.sendall(encode(message))

    def close(self) -> None:
        self._sock.close()


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
