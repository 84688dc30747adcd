"""The gateway as the server starts it.

    python -m qa_service.sidecars.grpc_gateway.child_main FD PARENT FLAG…

`gateway_messages` says what the two send each other over the descriptor.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
import sys
from typing import TYPE_CHECKING

from qa_service.child_program import end_with_parent, inherited_socket
from qa_service.sidecars.gateway_messages import LISTENING, RELOAD
from qa_service.sidecars.grpc_gateway.program import parse, run

if TYPE_CHECKING:
    from qa_service.sidecars.grpc_gateway.grpc_server import GrpcServer


def main() -> int:
    fd, parent, *flags = sys.argv[1:]
    end_with_parent(int(parent))
    with inherited_socket(int(fd)) as channel:
        error = run(parse(__doc__, flags), functools.partial(_serve, channel))
        channel.sendall(str(error).encode())
    return error.exit_code


async def _serve(channel: socket.socket, gateway: GrpcServer) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, gateway.stop)
    await gateway.start()
    reader, writer = await asyncio.open_connection(sock=channel.dup())
    writer.write(LISTENING)

    async def follow() -> None:
        while line := await reader.readline():
            if line == RELOAD:
                gateway.reload()
        gateway.stop()  # the server has closed the descriptor

    _following = asyncio.create_task(follow())  # noqa: RUF006 - the program ends
    await gateway.run()


if __name__ == "__main__":
    sys.exit(main())
