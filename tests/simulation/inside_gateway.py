"""All that the simulation knows of the gateway's inside: its links, and who uses them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from qa_service.aio.connection import AsyncConnection
from qa_service.client import Conversation
from qa_service.server.life_cycle import QaServer
from qa_service.sidecars.grpc_gateway.links import PeerLink, PeerLinks
from tests.simulation.asyncio_loop import UnixSocket
from tests.simulation.gateway import Gateway
from tests.simulation.network import SimulatedSocket

NUM_OWN_TASKS = 3
"""One serves, one follows the server's commands, and one looks for silent peers."""


def over_bounds(gateway: Gateway) -> Iterator[str]:
    """Which bounds of the links are exceeded now, and which calls the links do not know."""
    if gateway.program.loop.is_paused:
        return
    its, plan, users = gateway.program.server._links, gateway.plan, gateway.users()
    num_of_peer = Counter(peer for peer, _ in its._links)
    if len(its._links) > plan.max_connections:
        yield f"{len(its._links)} links"
    for peer, count in num_of_peer.items():
        if count > plan.max_links:
            yield f"{peer} has {count} links"
    for key in {**its._links, **users}:
        link = its._links.get(key)
        num_users = link.users if link else 0
        if num_users != users[key]:
            yield f"the link of {key} counts {num_users} calls, and has {users[key]}"
        if num_users > plan.max_calls:
            yield f"the link of {key} has {num_users} calls"
        if (not num_users) != (key in its._idle):
            yield f"the link of {key} has {num_users} calls, and its timer is wrong"
    yield from _strays(gateway)


def connected(gateway: Gateway) -> list[UnixSocket]:
    """The sockets over which it asks."""
    return list(_connections(gateway))


def busy(gateway: Gateway) -> list[UnixSocket]:
    """Those of them over which questions are under way."""
    return [sock for sock, one in _connections(gateway).items() if one.conversation.in_flight]


def _connections(gateway: Gateway) -> dict[UnixSocket, AsyncConnection]:
    sockets = gateway.program.loop.sockets
    return {s: s.protocol for s in sockets if isinstance(s.protocol, AsyncConnection)}


def _strays(gateway):
    """Connections that take questions and belong to no link."""
    links = gateway.program.server._links._links.values()
    known = {id(link._connection) for link in links}
    connections = _connections(gateway).values()
    strays = [one for one in connections if one.can_ask and id(one) not in known]
    if len(strays) > sum(link._opening.locked() for link in links):
        yield f"{len(strays)} connections belong to no link"


def astray(server: QaServer, gateway: Gateway) -> Iterator[str]:
    """Questions that the server has by the link of another peer or token, or of no call."""
    if not gateway.takes_calls or gateway.program.loop.is_paused:
        return
    sockets = {id(one): sock.sock for sock, one in _connections(gateway).items()}
    links = gateway.program.server._links._links
    key_of = {sockets.get(id(link._connection)): key for key, link in links.items()}
    for connection in server._connections:
        sock: SimulatedSocket = cast(Any, connection._stream)._sock
        if (key := key_of.get(sock)) and not (
            sock.unread_bytes or connection._codec.buffered_bytes
        ):
            asked = gateway.asked_now(key)
            for call in connection.calls.in_flight:
                if call.request.question not in asked:
                    yield f"the link of {key} asks {call.request.question!r} for no call of its own"


def keeps_idle(gateway: Gateway, key: tuple[str, str]) -> bool:
    """Whether a link that has no call is kept."""
    return gateway.takes_calls and key in gateway.program.server._links._idle


def held(gateway: Gateway) -> Iterator[str]:
    """What the gateway holds though no call is under way, and no link was used for long."""
    if not gateway.takes_calls:
        yield "the gateway does not listen"
        return
    its, loop = gateway.program.server, gateway.program.loop
    counts = (len(its._links._links), len(its._links._idle),
              its._inference._num_calls, len(its._inference._streams))  # fmt: skip
    if any(counts):
        yield f"the gateway holds links, idle links, calls and streams: {counts}"
    if len(loop.sockets) > 1:
        yield f"the gateway has {len(loop.sockets)} sockets"
    if (count := len(asyncio.all_tasks(loop))) > NUM_OWN_TASKS:
        yield f"the gateway has {count} tasks"


# Faults that are planted, to see that they are found.


def _forget(conversation, wire_id):
    """Does not withdraw what nobody waits for."""
    if conversation.in_flight.pop(wire_id, None):
        conversation._withdrawn.add(wire_id)


PLANTED = {
    "links": (PeerLinks, "_make_room", lambda *_: True),
    "refused": (PeerLink, "can_ask", True),
    "astray": (Conversation, "withdraw", _forget),
    "lost": (AsyncConnection, "can_ask", True),
}
"""As in `inside`."""
