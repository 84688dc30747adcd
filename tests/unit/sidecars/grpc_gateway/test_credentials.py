"""What the gateway's TLS asks of a client, seen by a client's handshake with a gRPC server."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest

grpc = pytest.importorskip("grpc", reason="there is no grpcio")

from harness.process import GIVE_UP_S
from qa_service.sidecars.grpc_gateway.grpc_server import Credentials
from tests.certificates import Certificates


def shake_hands(credentials: Credentials, client: ssl.SSLContext) -> None:
    """Raises OSError if the server refuses the client."""
    # Before TLS 1.3, a handshake ends only after the client's certificate was accepted.
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_alpn_protocols(["h2"])
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", credentials.make())
    server.start()
    try:
        with (
            socket.create_connection(("127.0.0.1", port), GIVE_UP_S) as sock,
            client.wrap_socket(sock, server_hostname="localhost"),
        ):
            pass
    finally:
        server.stop(None).wait(GIVE_UP_S)


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("has_authority", [False, True])
def test_a_client_is_accepted_that_shows_what_is_asked_for(certificates, has_authority):
    authority = certificates.ca if has_authority else None
    credentials = Credentials(certificates.cert, certificates.key, authority)
    shake_hands(credentials, certificates.client_context(with_certificate=has_authority))


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_client_without_a_certificate_of_the_authority_is_refused(
    certificates, others, is_of_another
):
    credentials = Credentials(certificates.cert, certificates.key, certificates.ca)
    client = certificates.client_context()
    if is_of_another:
        client.load_cert_chain(others.client_cert, others.client_key)
    with pytest.raises(OSError):
        shake_hands(credentials, client)
