"""The gateway: a grpcio server with the three services, until it is stopped.

STARTING ──▶ SERVING ──stop──▶ DRAINING (NOT_SERVING, streams end, calls are answered) ──▶ ENDED
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec import structs

from qa_service.errors import InvalidRequestError, QaError, SetupError
from qa_service.net.listener import bracketed, listening_addresses, try_port
from qa_service.net.tls import server_context, tls_files
from qa_service.sidecars.gateway_messages import GatewaySettings
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    POOL,
    REFLECTION_SERVICES,
    read_message,
)
from qa_service.sidecars.grpc_gateway.links import PeerLinks
from qa_service.sidecars.grpc_gateway.peers import RESERVE, SilentPeers, fitting_peers
from qa_service.sidecars.grpc_gateway.reports import Reports
from qa_service.sidecars.grpc_gateway.service import HealthService, InferenceService

logger = logging.getLogger(__name__)

LINGER_S = 0.2
"""Clients read their last answers meanwhile: closing a connection with unread bytes resets it."""
MIN_PING_INTERVAL_MS = 300_000
"""grpc's and Triton's default; a client that has no call and pings more often is disconnected."""


class GrpcServer:
    """A gateway; a `SetupError` if its certificates cannot be used."""

    def __init__(self, settings: GatewaySettings) -> None:
        most = fitting_peers(settings.max_connections)
        self._settings = settings = structs.replace(settings, max_connections=most)
        files = tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._credentials = Credentials(*files) if files else None
        self._stopping = asyncio.Event()
        self._draining = asyncio.Event()
        self._links = PeerLinks(settings)
        self._silent = SilentPeers(settings.port, most, self._links.busy_peers)
        self._reports = Reports(settings.unix_socket)
        self._inference = InferenceService(self._links, self._reports)
        self._server = grpc.aio.server(options=list(_options(settings).items()))
        health = HealthService(self._reports, self._draining)
        handlers = (self._inference.handler(), health.handler(), *_reflection_handlers())
        self._server.add_generic_rpc_handlers(handlers)

    @property
    def address(self) -> str:
        return f"{bracketed(self._settings.host)}:{self._settings.port}"

    async def start(self) -> None:
        """Starts to listen, at the addresses that the server takes for its port too.

        grpcio would try every address of a name, and be content if one of them is free. Raises
        `SetupError` if it cannot listen.
        """
        try:
            for ip_address in listening_addresses(self._settings.host):
                try_port(ip_address, self._settings.port)  # grpcio does not say why it cannot
                address = f"{bracketed(ip_address)}:{self._settings.port}"
                if self._credentials:
                    self._server.add_secure_port(address, self._credentials.make())
                else:
                    self._server.add_insecure_port(address)
        except OSError as error:
            raise SetupError(f"the gRPC gateway cannot listen on {self.address}: {error}") from None
        except RuntimeError:
            raise SetupError(f"the gRPC gateway cannot listen on {self.address}") from None
        await self._server.start()
        logger.info("the gRPC gateway listens on %s", self.address)

    async def look_for_server(self) -> None:
        """Asks whether it lives, so that the log says if none answers."""
        with contextlib.suppress(QaError):
            await self._reports.probe("/v2/health/live", "")

    def reload(self) -> None:
        if self._credentials:
            self._credentials.reload()

    def stop(self) -> None:
        """Has `run` drain and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Serves until it is stopped, and then until its calls are answered.

        The program must then end by `os._exit`: the connections that this closes tell later calls
        UNAVAILABLE, so that clients send them again elsewhere; grpcio's `stop` sends CANCELLED.
        """
        closing_silent = asyncio.create_task(self._silent.run())
        await self._stopping.wait()
        closing_silent.cancel()
        logger.info("the gRPC gateway drains")
        self._draining.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_ms / 1e3):
                await self._inference.drain()
        self._links.close()
        await asyncio.sleep(LINGER_S)


def _options(its: GatewaySettings) -> dict[str, int]:
    """The channel arguments (grpc/impl/channel_arg_names.h).

    `PeerLink` bounds the calls, not `grpc.max_concurrent_streams`: a server counts a stream as open
    for longer than its client does, so that it refuses half the calls of a client at the bound.
    """
    options = {
        "grpc.so_reuseport": 0,  # 1 would share a port that another program has
        "grpc.max_allowed_incoming_connections": its.max_connections + RESERVE,
        "grpc.max_receive_message_length": its.max_frame_bytes,
        "grpc.max_send_message_length": -1,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": MIN_PING_INTERVAL_MS,
    }
    if its.idle_timeout_ms:
        options["grpc.max_connection_idle_ms"] = its.idle_timeout_ms
    if its.max_connection_age_s:
        options["grpc.max_connection_age_ms"] = its.max_connection_age_s * 1000
    return options


def _reflection_handlers() -> list[grpc.GenericRpcHandler]:
    """A handler for each version; their messages differ in the package alone."""
    names = (INFERENCE_SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES)
    servicer = reflection.aio.ReflectionServicer(names, POOL)

    def read(data: bytes) -> Any:  # noqa: ANN401 - a ServerReflectionRequest
        try:
            return read_message(reflection_pb2.ServerReflectionRequest, data)
        except InvalidRequestError:  # an empty one, which the servicer refuses
            return reflection_pb2.ServerReflectionRequest()

    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        read,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in REFLECTION_SERVICES
    ]


class Credentials:
    """What new connections are shown: the server's own PEM files, which must be usable.

    With `client_ca`, one of its certificates must have signed a client's.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._paths = (cert, key, client_ca)
        self._latest = self._read()
        self._num_reloads = 0

    def make(self) -> grpc.ServerCredentials:
        """Credentials for a server, which takes the latest certificate at each handshake."""
        wants_certificates = self._paths[2] is not None
        return grpc.dynamic_ssl_server_credentials(
            self._latest, lambda: self._latest, wants_certificates
        )

    def reload(self) -> None:
        """Reads the files again; if they are faulty, the certificates in use stay.

        A thread reads, since a mount may hang; the latest reload to begin counts.
        """
        self._num_reloads += 1
        number = self._num_reloads

        def read() -> None:
            try:
                latest = self._read()
            except (SetupError, OSError) as error:
                logger.error("certificates are unchanged: %s", error)
                return
            if number == self._num_reloads:
                self._latest = latest

        threading.Thread(target=read, daemon=True).start()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._paths
        server_context(cert, key, client_ca)  # says in words what is wrong
        authorities = client_ca.read_bytes() if client_ca else None
        pair = (key.read_bytes(), cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], authorities)
