"""What clients meet: ports, certificates and tokens."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.logs import plural
from qa_service.net.event_loop import EventLoop
from qa_service.net.tls import server_context
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import ServerConfig
from qa_service.server.front.auth import Authenticator
from qa_service.server.front.listeners import Listeners, warn_if_exposed
from qa_service.server.front.transport import Transport

SOON = timedelta(days=30)


def check_front(config: ServerConfig) -> Iterator[Finding]:
    """Ports, certificates and tokens."""
    yield from _ports(config)
    yield from _certificates(config)
    yield from _tokens(config)
    loop = EventLoop()
    try:
        transport = Transport(loop, config.tls, config.auth.auth_timeout_s)
        warn_if_exposed(config.listen.host, transport, Authenticator(config.auth))
    finally:
        loop.close()


def _ports(config: ServerConfig) -> Iterator[Finding]:
    listen = config.listen
    for name, port in (("--port", listen.port), ("--grpc_port", listen.grpc_port)):
        if not port and name == "--grpc_port":
            continue
        try:
            _try_port(config, port)
        except SetupError as caught:
            yield error(str(caught), f"end what listens there (ss -ltnp), or give another {name}")
        else:
            yield ok(f"{listen.host}:{port} can be listened on" if port else "any free port")


def _try_port(config: ServerConfig, port: int) -> None:
    """Listens for a moment.

    Raises:
        SetupError: That is not possible.
    """
    loop = EventLoop()
    options = type(config.listen)(host=config.listen.host, port=port)
    try:
        listeners = Listeners(loop, options, lambda *_: None, lambda *_: None)
        try:
            listeners.open()
        finally:
            listeners.close()
    finally:
        loop.close()


def _certificates(config: ServerConfig) -> Iterator[Finding]:
    tls = config.tls
    if tls.tls_cert is None or tls.tls_key is None:
        yield ok("clients connect without TLS")
        return
    server_context(tls.tls_cert, tls.tls_key, tls.tls_client_ca)
    yield _dates(tls.tls_cert)


def _dates(cert: Path) -> Finding:
    """Until when a certificate is valid."""
    now = datetime.now(UTC)
    first, last = (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(word), UTC) for word in _validity(cert)
    )
    words = f"{cert} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    if not first <= now <= last:
        return warning(f"{words}, and not now: clients refuse it", "get another certificate")
    if last - now < SOON:
        return warning(f"{words}: it ends soon", "renew it; SIGHUP loads it")
    return ok(words)


def _validity(cert: Path) -> tuple[str, str]:
    # The module `ssl` decodes a certificate only after a handshake, but for this function.
    fields = ssl._ssl._test_decode_cert(str(cert))  # type: ignore[attr-defined]
    return fields["notBefore"], fields["notAfter"]


def _tokens(config: ServerConfig) -> Iterator[Finding]:
    tokens = Authenticator(config.auth).load()
    if tokens is None:
        yield ok("clients need no token")
        return
    num_expired = tokens.num_expired(datetime.now(UTC))
    words = f"{plural(len(tokens), 'token')} in {config.auth.auth_token_file}"
    if num_expired:
        yield warning(f"{words}, of which {num_expired} have expired")
    else:
        yield ok(words)
