"""A bare grpc.aio server: the library's own price.

python -m benchmarks.servers.grpc_echo PORT
"""

from __future__ import annotations

import asyncio
import sys

import grpc

REPLY = b"x" * 150
"""About as long as an answer of the gateway's."""


async def echo(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
    return REPLY


async def main(port: int) -> None:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("echo", {"Echo": method})]
    )
    server.add_insecure_port(f"localhost:{port}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
