"""The addresses at which a server listens for a name."""

from __future__ import annotations

import errno
import ipaddress
import socket

LOOPBACK = ("127.0.0.1", "::1")
"""`localhost`, whatever the machine's files of hosts say (RFC 6761, section 6.3)."""
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def listening_addresses(host: str) -> list[str]:
    """The IP addresses of a name that this machine has: of `localhost` both, if it has IPv6.

    Raises:
        OSError: It has none of them, or the name is unknown or a URL.
    """
    addresses = _addresses(host)
    if len(addresses) == 1:
        return addresses
    failure: OSError | None = None
    found = []
    for address in addresses:
        try:
            with make_socket(address) as sock:
                sock.bind((address, 0))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            failure = error
        else:
            found.append(address)
    if failure and not found:
        raise failure
    return found


def try_port(address: str, port: int) -> None:
    """Binds for a moment; raises `OSError` if the port cannot be had."""
    with make_socket(address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))


def make_socket(address: str) -> socket.socket:
    """A TCP socket of the address' family; one of `::` takes IPv4 clients too."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def is_loopback(host: str) -> bool:
    try:
        return all(ipaddress.ip_address(one).is_loopback for one in _addresses(host))
    except (OSError, ValueError):
        return False


def _addresses(host: str) -> list[str]:
    if host == "localhost":
        return list(LOOPBACK)
    if "/" in host:
        raise OSError("it is a URL; a name is needed, as in localhost")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise OSError("there is no address of this name") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
