"""The gateway as the server starts it: `python -m qa_service.grpc_gateway.beside FD PARENT flags`.

What it says and is told over the descriptor, `front/gateway.py` has.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from qa_service.errors import SetupError
from qa_service.front.gateway import LISTENING, RELOAD
from qa_service.grpc_gateway.program import MISSING
from qa_service.grpc_gateway.settings import Settings, parse
from qa_service.inference.parent import end_with_parent
from qa_service.logs import configure_logging

if TYPE_CHECKING:
    from qa_service.grpc_gateway.gateway import Gateway


def main() -> int:
    """Runs the program; returns its exit code."""
    fd, parent, *flags = sys.argv[1:]
    end_with_parent(int(parent))
    settings = parse(__doc__, flags)
    configure_logging(settings.log_level, settings.log_format)
    with socket.socket(fileno=int(fd)) as channel:
        try:
            asyncio.run(_serve(settings, channel))
        except ModuleNotFoundError as error:
            channel.sendall(MISSING.format(error.name).encode())
            return SetupError.exit_code
        except SetupError as error:
            channel.sendall(str(error).encode())
            return error.exit_code
    return 0


async def _serve(settings: Settings, channel: socket.socket) -> None:
    from qa_service.grpc_gateway import gateway as room  # noqa: PLC0415 - grpcio may be missing

    gateway = room.Gateway(settings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, gateway.stop)
    await gateway.start()
    reader, writer = await asyncio.open_connection(sock=channel.dup())
    writer.write(LISTENING)
    _following = asyncio.create_task(_follow(reader, gateway))  # noqa: RUF006 - the program ends
    await gateway.run()
    logging.shutdown()
    os._exit(0)


async def _follow(reader: asyncio.StreamReader, gateway: Gateway) -> None:
    """Does what the server says, until it says no more."""
    while line := await reader.readline():
        if line == RELOAD:
            gateway.reload()
    gateway.stop()


if __name__ == "__main__":
    sys.exit(main())
