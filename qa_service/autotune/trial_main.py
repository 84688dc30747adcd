"""Measures engines for the server in a separate process, since it blocks.

`python -m qa_service.autotune.trial_main FD PARENT` reads a request from its descriptor, keeps
the table in the model's folder, and replies.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from qa_service.autotune.engine_table import TrialReply, TrialRequest, encode
from qa_service.autotune.engine_trial import try_engines
from qa_service.child_program import end_with_parent, inherited_socket
from qa_service.errors import SetupError
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.logs import configure_logging

LOWEST_PRIORITY = 19
"""As nice(1) counts: next to a busy instance, a program of it gets 1 or 2 % of a core."""


def reply_to(request: TrialRequest) -> TrialReply:
    measurement = request.measurement
    try:
        table = try_engines(measurement, request.logs)
    except (SetupError, OSError) as error:
        return TrialReply(failure=str(error))
    keep(Path(measurement.path), table)
    return TrialReply(table)


def main(arguments: Sequence[str]) -> None:
    descriptor, parent = map(int, arguments)
    end_with_parent(parent)
    with inherited_socket(descriptor) as sock:
        body = WorkerChannel(sock).receive_body()
        if body is None:
            return
        request = msgspec.msgpack.decode(body, type=TrialRequest)
        configure_logging(request.logs.log_level, request.logs.log_format)
        if request.is_beside:
            os.nice(LOWEST_PRIORITY)
        with contextlib.suppress(OSError):
            sock.sendall(encode(reply_to(request)))


if __name__ == "__main__":
    main(sys.argv[1:])
