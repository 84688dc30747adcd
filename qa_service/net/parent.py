"""What binds a program to its server: it ends when that does, and its death is seen."""

from __future__ import annotations

import ctypes
import os
import signal
import socket

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its server ends, even within a C call.

    Linux, PR_SET_PDEATHSIG in prctl(2): the parent is the thread that started this process; in the
    server only the loop's thread starts processes.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(0)


def inherited_socket(descriptor: int) -> socket.socket:
    """A program's end of its socketpair, for its `main`.

    No process that the program starts or forks keeps it: end-of-file would come only when that
    process ends too.
    """
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    os.register_at_fork(after_in_child=sock.close)
    return sock
