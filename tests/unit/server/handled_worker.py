"""A worker whose instance is the test: the test holds the other end of its channel."""

import socket

from qa_service.instance.channel import WorkerChannel
from qa_service.server.instances.base import Worker


class HandledWorker(Worker):
    """Its instance is played by the test, at `peer`."""

    def _launch(self):
        ours, theirs = socket.socketpair()
        self.peer = WorkerChannel(theirs)
        return ours

    def kill(self):
        pass

    def exit_status(self):
        return "ended"
