"""Warns of a server that is open to a network without TLS or tokens."""

from __future__ import annotations

import logging

from qa_service.net.addresses import is_loopback
from qa_service.server.front.auth import Authenticator
from qa_service.server.front.transport import Transport

logger = logging.getLogger(__name__)


def warn_if_exposed(host: str, transport: Transport, authenticator: Authenticator) -> None:
    """Logs what anyone who can reach this address may do."""
    if is_loopback(host):
        return
    if not transport.is_encrypted and not authenticator.is_required:
        logger.warning(
            "anyone who can reach %s may ask and read along: there is neither --tls_cert nor "
            "--auth_token_file",
            host,
        )
    elif not transport.is_encrypted:
        logger.warning("tokens come to %s in clear: there is no --tls_cert", host)
