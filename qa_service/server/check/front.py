"""What clients meet: ports, certificates and tokens."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.logs import plural
from qa_service.net.event_loop import EventLoop
from qa_service.net.listener import tcp_listeners
from qa_service.net.tls import server_context, tls_files
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import ServerConfig
from qa_service.server.front.listeners import check_socket_place, warn_if_exposed
from qa_service.server.front.tokens import load_tokens

SOON = timedelta(days=30)


def check_ports(config: ServerConfig) -> Iterator[Finding]:
    """Listens at each port for a moment, at all together."""
    listen = config.listen
    wanted = [("--port", listen.port, "")]
    if listen.grpc_port:
        wanted.append(("--grpc_port", listen.grpc_port, "the gRPC gateway "))
    with contextlib.closing(EventLoop()) as loop, contextlib.ExitStack() as listeners:
        for flag, port, who in wanted:
            try:
                for listener in tcp_listeners(loop, listen.host, port, lambda *_: None):
                    listeners.callback(listener.close)
                    listener.open()
            except SetupError as caught:
                remedy = f"end what listens there, or give another {flag}"
                yield _taken(f"{who}{caught}", remedy, process_at_port(port))
            else:
                yield ok(f"{listen.host}:{port} can be listened on" if port else "any free port")


def check_unix_socket(config: ServerConfig) -> Iterator[Finding]:
    try:
        check_socket_place(config.listen)
    except SetupError as caught:
        path = config.listen.unix_socket
        remedy = "end what listens there, or give another --unix_socket"
        yield _taken(str(caught), remedy, process_at_path(path) if path else None)


def _taken(text: str, remedy: str, process: Process | None) -> Finding:
    """An address that cannot be had; beside another QA server it is free when that has ended."""
    if process is None:
        return error(text, f"{remedy} (ss -ltnp names it to its user and to root)")
    if process.pid == os.getpid():  # two flags name the same address
        return error(text, remedy)
    text = f"{text}: {process} listens there"
    if any(word.startswith("qa_service.") or Path(word).name in _OURS for word in process.words):
        return warning(text, "a start needs the address: end that server first")
    return error(text, remedy)


def check_certificates(config: ServerConfig) -> Iterator[Finding]:
    its = config.tls
    if not (files := tls_files(its.tls_cert, its.tls_key, its.tls_client_ca)):
        yield ok("clients connect without TLS")
        return
    server_context(*files)
    now, cert = datetime.now(UTC), its.tls_cert
    # The module `ssl` decodes a certificate only after a handshake, but for this function.
    fields = ssl._ssl._test_decode_cert(str(cert))  # type: ignore[attr-defined]
    first, last = (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(fields[name]), UTC)
        for name in ("notBefore", "notAfter")
    )
    words = f"{cert} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    if not first <= now <= last:
        yield warning(f"{words}, and not now: clients refuse it", "get another certificate")
    elif last - now < SOON:
        yield warning(f"{words}: it ends soon", "renew it; SIGHUP loads it")
    else:
        yield ok(words)


def check_tokens(config: ServerConfig) -> Iterator[Finding]:
    if (path := config.auth.auth_token_file) is None:
        yield ok("clients need no token")
        return
    tokens, now = load_tokens(path), datetime.now(UTC)
    num_expired = sum(entry.has_expired(now) for entry in tokens)
    words = f"{plural(len(tokens), 'token')} in {path}"
    if num_expired:
        yield warning(f"{words}, of which {num_expired} have expired")
    else:
        yield ok(words)


def check_exposure(config: ServerConfig) -> Iterator[Finding]:
    """What anyone who can reach the address may do, which is logged."""
    warn_if_exposed(
        config.listen.host,
        is_encrypted=config.tls.tls_cert is not None,
        wants_token=config.auth.auth_token_file is not None,
    )
    yield from ()


# The process that listens at a port or at a path, as /proc shows it to this user.

PROC = Path("/proc")
_OURS = ("qa-server", "qa-grpc-gateway", "server.py")


class Process(msgspec.Struct, frozen=True):
    """A process.

    Attributes:
        words: Its command without the flags, which may hold secrets.
    """

    pid: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"process {self.pid} ({' '.join(self.words)})"


def process_at_port(port: int) -> Process | None:
    """Who listens at a TCP port; None if nobody does, or another user whom only root sees."""
    rows = (row for name in ("tcp", "tcp6") for row in _rows(name))
    return _holder(
        row[9]
        for row in rows
        # TCP_LISTEN in the table of sockets (proc_pid_net(5)).
        if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
    )


def process_at_path(path: Path) -> Process | None:
    return _holder(
        row[6]
        for row in _rows("unix")
        # The flag of a Unix socket that listens.
        if int(row[3], 16) & 0x10000 and row[7:] == [str(path.absolute())]
    )


def _rows(table: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            yield line.split(maxsplit=7) if table == "unix" else line.split()


def _holder(inodes: Iterable[str]) -> Process | None:
    """The process that has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in PROC.glob("[0-9]*") if wanted else ():
        with contextlib.suppress(OSError):
            if any(str(fd.readlink()) in wanted for fd in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_text().rstrip("\0").split("\0")
                its = takewhile(lambda word: not word.startswith("--"), words)
                return Process(int(folder.name), tuple(its))
    return None
