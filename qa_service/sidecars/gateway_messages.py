"""What the server hands the gRPC gateway, its flags, and what the two write each other.

server ──"reload" ────▶ gateway    after each reload of the certificates
server ──end-of-file──▶ gateway    the gateway drains and ends
server ◀──"listening"── gateway    from now on it takes calls
server ◀──an error───── gateway    it cannot listen, and ends
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.engine_catalogue import is_installed
from qa_service.errors import SetupError
from qa_service.installation import say_missing
from qa_service.logs import LogFormat, LogLevel
from qa_service.options import Count, OptionalCount, OptionalMs
from qa_service.wire.messages import MAX_FRAME_BYTES, MIN_FRAME_BYTES

LISTENING = b"listening\n"
RELOAD = b"reload\n"

_SERVERS = Meta(description="the server's flag of this name")


PACKAGES = ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")
_MODULES = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")


def need_grpc() -> None:
    """Raises `SetupError` if a package of the gateway is not installed."""
    for module in _MODULES:
        if not is_installed(module):
            raise SetupError(say_missing(ModuleNotFoundError(name=module), "grpc", PACKAGES))


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """The gateway's flags. They have the names of the server's flags, whose values it passes on.

    Attributes:
        idle_timeout_ms: How long a connection may have no call; 0 for no limit.
        max_connection_age_s: When a connection is closed after its calls; 0 for never.
        tls_cert: None for no TLS.
        tls_client_ca: Who must have signed a client's certificate; None asks for none.
    """

    unix_socket: Annotated[Path, _SERVERS]
    host: Annotated[str, Meta(min_length=1, description="address to listen on")] = "localhost"
    port: Annotated[int, Meta(ge=1, le=65535, description="port to listen on")] = 8001
    max_connections: Annotated[Count, Meta(description="peers at a time")] = 1000
    max_frame_bytes: Annotated[int, Meta(ge=MIN_FRAME_BYTES, le=MAX_FRAME_BYTES), _SERVERS] = (
        1 << 18
    )
    max_in_flight_per_connection: Annotated[Count, _SERVERS] = 64
    idle_timeout_ms: Annotated[OptionalMs, _SERVERS] = 600_000
    max_connection_age_s: Annotated[OptionalCount, _SERVERS] = 0
    tls_cert: Annotated[Path | None, _SERVERS] = None
    tls_key: Annotated[Path | None, _SERVERS] = None
    tls_client_ca: Annotated[Path | None, _SERVERS] = None
    drain_timeout_ms: Annotated[OptionalMs, _SERVERS] = 30_000
    log_level: Annotated[LogLevel, Meta(description="lowest level that is logged")] = "info"
    log_format: Annotated[LogFormat, Meta(description="text, or JSON a line")] = "text"
