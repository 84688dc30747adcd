"""A session in a thread of the server's process: the same channel, the same code at its end.

It shares the interpreter with the loop, so the GIL stands between them wherever the model's
library holds it; and it can't be killed, only hung up on: the process ends when its present
batch does. `--worker_type thread` is for measuring that, and for machines where a second copy
of the libraries does not fit.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from qa_service.workers.base import Worker
from qa_service.workers.channel import WorkerChannel

logger = logging.getLogger(__name__)


class ThreadWorker(Worker):
    """A worker thread."""

    def _launch(self, channel: socket.socket) -> None:
        self._thread = threading.Thread(
            target=self._serve, args=(channel,), name=f"session-{self.number}"
        )
        self._thread.start()

    def _serve(self, sock: socket.socket) -> None:
        # Only here: a loop that has processes for its sessions needs none of their libraries.
        from qa_service.workers import worker_main  # noqa: PLC0415

        channel = WorkerChannel(sock)
        try:
            with contextlib.suppress(BrokenPipeError):
                worker_main.serve(channel, self.placement)
        except Exception:
            logger.exception("session %d died", self.number)
        finally:
            channel.close()

    def kill(self) -> None:
        """Does nothing: a thread ends when it next looks at its channel."""

    def exit_status(self) -> str | None:
        """Whether the thread has ended."""
        return None if self._thread.is_alive() else "thread ended"
