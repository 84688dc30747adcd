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
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from qa_service.command_line import make_parser
from qa_service.errors import SetupError
from qa_service.installation import say_missing
from qa_service.log_relay import relay_standard_streams
from qa_service.logs import complain, configure_logging
from qa_service.options import add_flags, from_flags
from qa_service.sidecars.gateway_messages import PACKAGES, GatewaySettings

if TYPE_CHECKING:
    from qa_service.sidecars.grpc_gateway.grpc_server import GrpcServer

_Serve = Callable[["GrpcServer"], Awaitable[None]]


def main() -> int:
    error = run(parse(__doc__), _serve)
    complain(error)
    return error.exit_code


def parse(docstring: str | None, arguments: Sequence[str] | None = None) -> GatewaySettings:
    parser = make_parser(docstring)
    add_flags(parser, GatewaySettings)
    return from_flags(GatewaySettings, vars(parser.parse_args(arguments)))


def run(settings: GatewaySettings, serve: _Serve) -> SetupError:
    """Has a gateway serve and then ends the program; returns why the gateway cannot serve."""

    async def serve_and_end() -> NoReturn:
        from qa_service.sidecars.grpc_gateway.grpc_server import GrpcServer  # noqa: PLC0415 - grpcio may be missing

        await serve(GrpcServer(settings))
        logging.shutdown()
        os._exit(0)

    configure_logging(settings.log_level, settings.log_format)
    if settings.log_format == "json":
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own lines are text
    try:
        asyncio.run(serve_and_end())
    except ModuleNotFoundError as error:
        return SetupError(say_missing(error, "grpc", PACKAGES))
    except SetupError as error:
        return error


async def _serve(gateway: GrpcServer) -> None:
    end_relay = relay_standard_streams()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, gateway.stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    await gateway.start()
    looking = asyncio.create_task(gateway.look_for_server())
    await gateway.run()
    looking.cancel()
    end_relay()


if __name__ == "__main__":
    sys.exit(main())
