"""Servers with TLS, client certificates or tokens: a plugin of fixtures, which tests name."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.server import running_server
from tests.fault.authentication import EXPIRED, FEW, LONG_MS, SHORT_MS, TOKEN


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"# tests\n{TOKEN}\n{EXPIRED} 2020-01-01T00:00:00Z\n")
    return path


@pytest.fixture(scope="module")
def tls(builtin_model, certificates):
    """A server that speaks TLS and wants no token."""
    flags = ("--tls_handshake_timeout_ms", str(LONG_MS), "--max_frame_bytes", str(1 << 20))
    with running_server(builtin_model, *FEW, *certificates.server_flags, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_tls(builtin_model, certificates):
    """The same for clients that stall."""
    flags = ("--tls_handshake_timeout_ms", str(SHORT_MS))
    with running_server(builtin_model, *FEW, *certificates.server_flags, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(builtin_model, certificates):
    """A server that wants a client's certificate."""
    ca = ("--tls_client_ca", str(certificates.ca))
    with running_server(builtin_model, *FEW, *certificates.server_flags, *ca) as server:
        yield server


@pytest.fixture(scope="module")
def with_tokens(builtin_model, token_file):
    """A server that wants a token."""
    flags = ("--auth_token_file", str(token_file), "--auth_timeout_ms", str(LONG_MS))
    with running_server(builtin_model, *FEW, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_with_tokens(builtin_model, token_file):
    """The same for clients that show none."""
    flags = ("--auth_token_file", str(token_file), "--auth_timeout_ms", str(SHORT_MS))
    with running_server(builtin_model, *FEW, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def plain(builtin_model):
    """A server without TLS and tokens."""
    with running_server(builtin_model, *FEW) as server:
        yield server
