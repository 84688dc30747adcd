"""Speaks gRPC for a QA server on this machine, which it asks over a Unix socket.

    qa-server --unix_socket /run/qa/socket
    qa-grpc-gateway --unix_socket /run/qa/socket --port 8001

`qa-server --grpc_port 8001` does both. See docs/GRPC.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from qa_service.errors import SetupError
from qa_service.grpc_gateway.settings import Settings, parse
from qa_service.logs import configure_logging

MISSING = "{} is missing: pip install 'qa-server[grpc]'"


def main() -> int:
    """Runs the program; returns its exit code."""
    settings = parse(__doc__)
    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(_serve(settings))
    except ModuleNotFoundError as error:
        print(f"Error: {MISSING.format(error.name)}", file=sys.stderr)
        return SetupError.exit_code
    except SetupError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _serve(settings: Settings) -> None:
    from qa_service.grpc_gateway.gateway import Gateway  # noqa: PLC0415 - grpcio may be missing

    gateway = Gateway(settings)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, gateway.stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    await gateway.start()
    await gateway.run()
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
