"""The gateway's flags. They have the names of the server's own, whose values it hands on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from qa_service.flags import count, make_parser, port
from qa_service.logs import LogFormat, LogLevel


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags by their names.

    Attributes:
        idle_timeout_ms: How long a connection may have no call; 0 for no limit.
        max_connection_age_s: When a connection is closed after its calls; 0 for never.
        tls_cert: None for no TLS.
        tls_client_ca: Who must have signed a client's certificate; None asks for none.
    """

    unix_socket: Path
    host: str
    port: int
    max_connections: int
    max_frame_bytes: int
    max_in_flight_per_connection: int
    idle_timeout_ms: int
    max_connection_age_s: int
    grpc_http2_min_recv_ping_interval_without_data_ms: int
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    drain_timeout_ms: int
    log_level: str
    log_format: str


def parse(docstring: str | None, arguments: Sequence[str] | None = None) -> Settings:
    """Reads the command line.

    Raises:
        SystemExit: The flags are wrong, or ask for help.
    """
    parser = make_parser(docstring)
    add = parser.add_argument
    add("--unix_socket", type=Path, required=True, help="the server's flag of this name")
    add("--host", default="localhost", help="address to listen on")
    add("--port", type=port, default=8001, help="port to listen on")
    add("--max_connections", type=count, default=1000, help="peers at a time")
    _add_as_servers(parser)
    levels = get_args(LogLevel)
    add("--log_level", choices=levels, default="info", help="lowest level that is logged")
    add("--log_format", choices=get_args(LogFormat), default="text", help="text, or JSON a line")
    return Settings(**vars(parser.parse_args(arguments)))


def _add_as_servers(parser: argparse.ArgumentParser) -> None:
    text = "the server's flag of this name"
    for name, kind, default in (
        ("max_frame_bytes", count, 1 << 18),
        ("max_in_flight_per_connection", count, 64),
        ("idle_timeout_ms", int, 600_000),
        ("max_connection_age_s", int, 0),
        ("grpc_http2_min_recv_ping_interval_without_data_ms", int, 300_000),
        ("tls_cert", Path, None),
        ("tls_key", Path, None),
        ("tls_client_ca", Path, None),
        ("drain_timeout_ms", int, 30_000),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
