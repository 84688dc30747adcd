"""Ends a program when its server ends."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its server ends, even within a C call.

    Linux, PR_SET_PDEATHSIG in prctl(2): the parent is the thread that started this process; in the
    server only the loop's thread starts processes.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(0)
