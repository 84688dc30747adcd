"""Search processes without processes: the test says what they reply, and when they die."""

from __future__ import annotations

from typing import ClassVar, cast

from qa_service.net.event_loop import EventLoop
from qa_service.retrieval.search_messages import (
    Close,
    Closed,
    Found,
    Open,
    Opened,
    Reply,
    ask_decoder,
    encode,
)
from qa_service.server.children.child import Child
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.frames import PREFIX
from tests.support import present
from tests.unit.server.fake_services import ManualClock


class Program:
    """What the child's process and its end of the channel would be."""

    pid = 1
    code = None

    def poll(self):
        return self.code

    def kill(self):
        self.code = -9

    def setblocking(self, _):
        pass

    def close(self):
        pass


class FakeProcess(Child):
    """The real child, whose program is the test.

    Attributes:
        asked: What it has not replied to, by number.
        identity: Of the indexes that it opens.
    """

    made: ClassVar[dict[str, FakeProcess]] = {}
    """The latest, by what they search."""

    def __init__(self, loop, name, launch, **options):
        super().__init__(loop, name, self._launch_fake, **options)
        self.asked, self.works = {}, []
        self.is_killed = False
        self.identity, self.starts = "one", 0
        self.concurrency = launch
        self.made[name.removeprefix("the search process of ")] = self

    def _launch_fake(self):
        self.starts += 1
        self.asked = {}
        program = Program()
        return program, program

    def start(self):
        if not self.is_running:
            super().start()

    def kill(self):
        self.is_killed = True
        super().kill()

    def write(self, data):
        ask = ask_decoder.decode(data[PREFIX.size :])
        self.works.append(ask.work)
        self.asked[ask.number] = ask.work

    # What a test has it do.

    def settle(self):
        """Opens and closes what it is asked to."""
        while rest := [n for n, work in self.asked.items() if isinstance(work, Open | Close)]:
            for number in rest:
                work = self.asked[number]
                self.reply(Opened(self.identity) if isinstance(work, Open) else Closed(), number)

    def reply(self, result, number=None):
        number = min(self.asked) if number is None else number
        del self.asked[number]
        present(self._run).stream._on_data(bytes(encode(Reply(number, result))))

    def find(self, passages=(), took_ms=0.5):
        self.reply(Found(list(passages), took_ms))

    def die(self):
        self.asked = {}
        present(self._run).stream._ended()

    @property
    def waiting(self):
        return list(self.asked.values())


def concurrency_of(concurrency):
    """In place of what starts a process."""
    return concurrency


class Searching:
    """Collections that are searched by such processes."""

    def __init__(self, **bounds):
        self.clock, self.counts, self.processes = ManualClock(), ServiceCounts(), FakeProcess.made
        loop = cast(EventLoop, self.clock)
        self.collections = CollectionSet(loop, concurrency_of, self.counts, 256, **bounds)

    def settle(self):
        for process in list(self.processes.values()):
            if process.is_running:
                process.settle()
