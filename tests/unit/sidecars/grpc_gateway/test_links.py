"""The gateway's connections, drawn calls of drawn peers against what the bounds promise."""

import asyncio
import random
from contextlib import ExitStack
from typing import cast

import pytest

from qa_service.errors import QueueFullError
from qa_service.sidecars.grpc_gateway import links as module
from qa_service.sidecars.grpc_gateway.links import IDLE_S, PeerLink, PeerLinks
from qa_service.sidecars.grpc_gateway.program import parse

MAX_LINKS, MAX_CALLS, MAX_CONNECTIONS = 3, 4, 5
PEERS, TOKENS = "abc", "123456"


class Link(PeerLink):
    """One that is connected as the test says."""

    can_ask = True

    def __init__(self, settings, token):
        super().__init__(settings, token)
        self.is_closed = False

    def close(self):
        assert not self.users, "a connection with calls was closed"
        assert not self.is_closed
        self.is_closed = True


class Gateway:
    """The links, the calls under way, and what is known of them.

    Attributes:
        idle: The connections without calls, the one that has been silent longest first.
    """

    def __init__(self):
        flags = ["--unix_socket", "nowhere", "--max_connections", str(MAX_CONNECTIONS)]
        self.links = PeerLinks(parse("", flags))
        self.calls = []
        self.known, self.idle = {}, []

    def begin(self, peer, token):
        key, stack = (peer, token), ExitStack()
        is_known, its = key in self.known, self.known.get(key)
        evicted = None if is_known else self._evicted(peer)
        if evicted == "refused" or (its is not None and its.users >= MAX_CALLS):
            with pytest.raises(QueueFullError):
                stack.enter_context(self.links.link(peer, token))
            return
        link = stack.enter_context(self.links.link(peer, token))
        assert is_known == (link is its)
        for old in evicted or ():
            assert self.known.pop(old).is_closed
            self.idle.remove(old)
        if key in self.idle:
            self.idle.remove(key)
        self.known[key] = link
        self.calls.append((key, stack))

    def _evicted(self, peer):
        """Which connections make room, one after the other; "refused" if none can."""
        num_its = sum(key[0] == peer for key in self.known)
        gone = []
        if num_its >= MAX_LINKS:
            gone += [key for key in self.idle if key[0] == peer][:1] or ["refused"]
        if len(self.known) - len(gone) >= MAX_CONNECTIONS:
            gone += [key for key in self.idle if key not in gone][:1] or ["refused"]
        return "refused" if "refused" in gone else gone

    def end(self, number, *, is_refused):
        key, stack = self.calls.pop(number)
        link = self.known[key]
        link.can_ask = not is_refused
        stack.close()
        if link.users:
            return
        if is_refused:
            assert self.known.pop(key).is_closed
        else:
            self.idle.append(key)

    async def pass_idle_time(self, loop):
        loop.now_s += IDLE_S + 0.1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for key in self.idle:
            assert self.known.pop(key).is_closed
        self.idle.clear()

    def check(self):
        assert not any(link.is_closed for link in self.known.values())
        assert len(self.known) <= MAX_CONNECTIONS
        assert all(sum(key[0] == peer for key in self.known) <= MAX_LINKS for peer in PEERS)
        assert sum(link.users for link in self.known.values()) == len(self.calls)


class Loop(asyncio.SelectorEventLoop):
    """One whose time is set by hand."""

    now_s = 0.0

    def time(self):
        return self.now_s


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_and_the_longest_silent_connection_makes_room(seed, monkeypatch):
    for name, value in {"MAX_LINKS": MAX_LINKS, "MAX_CALLS": MAX_CALLS, "PeerLink": Link}.items():
        monkeypatch.setattr(module, name, value)
    draw = random.Random(seed)

    async def play():
        gateway, loop = Gateway(), cast(Loop, asyncio.get_running_loop())
        for _ in range(300):
            what = draw.random()
            if what < 0.5:
                gateway.begin(draw.choice(PEERS), draw.choice(TOKENS))
            elif what < 0.97 and gateway.calls:
                number = draw.randrange(len(gateway.calls))
                gateway.end(number, is_refused=draw.random() < 0.3)
            elif what >= 0.97:
                await gateway.pass_idle_time(loop)
            loop.now_s += 0.001
            gateway.check()
        while gateway.calls:
            gateway.end(0, is_refused=False)
        await gateway.pass_idle_time(loop)
        assert not gateway.known
        assert not gateway.links._links

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(play())


def test_a_connection_is_used_again_while_the_silence_is_short(monkeypatch):
    monkeypatch.setattr(module, "PeerLink", Link)

    async def play():
        gateway, loop = Gateway(), cast(Loop, asyncio.get_running_loop())
        gateway.begin("a", "1")
        link = gateway.known["a", "1"]
        for _ in range(3):
            gateway.end(0, is_refused=False)
            loop.now_s += IDLE_S - 0.1
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gateway.begin("a", "1")
        assert gateway.known["a", "1"] is link

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(play())
