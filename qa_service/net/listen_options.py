"""Options of the listening socket and of TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import Count


class ListenOptions(Struct, frozen=True, kw_only=True):
    """Where clients connect."""

    host: Annotated[
        str,
        Meta(
            min_length=1,
            description="address or name to listen on; a name stands for all of its addresses on "
            "this machine; 0.0.0.0 for all IPv4 interfaces, :: for all IPv4 and IPv6 interfaces",
        ),
    ] = "localhost"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="port to listen on; 0 picks a free one")
    ] = 9999
    unix_socket: Annotated[
        Path | None,
        Meta(
            description="path of a Unix socket to listen on as well, without TLS, for programs of "
            "the same user on this machine"
        ),
    ] = None
    grpc_port: Annotated[
        int,
        Meta(ge=0, le=65535,
             description="port of the gRPC gateway (docs/GRPC.md); Triton's is 8001; 0 for none"),
    ] = 0  # fmt: skip
    max_connections: Annotated[
        Count,
        Meta(
            description="maximum number of open connections; at this bound the longest silent one "
            "is closed for a new one; if none is silent, the new one may only ask for health and "
            "other queries"
        ),
    ] = 1000


class TlsOptions(Struct, frozen=True, kw_only=True):
    """The server's certificate, and the clients' certificates that it requires."""

    tls_cert: Annotated[
        Path | None,
        Meta(
            description="the server's certificate and its intermediates, in PEM; with --tls_key, "
            "turns TLS on"
        ),
    ] = None
    tls_key: Annotated[Path | None, Meta(description="the certificate's private key, in PEM")] = (
        None
    )
    tls_client_ca: Annotated[
        Path | None,
        Meta(
            description="authorities' certificates in PEM; a client must have a certificate "
            "signed by one of them"
        ),
    ] = None
