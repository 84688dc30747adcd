"""Search processes without processes: the real `Child`, and at the other end a program.

The collection `docs` has, for each question that is asked of it, a document with the question's
text, and one that is found for every question and does not answer it. The program does wrong when
the script says: it dies, hangs, finds its index damaged, or sends an invalid reply.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from qa_service.retrieval.search_messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Close,
    Closed,
    Found,
    FoundPassage,
    Open,
    Opened,
    Refused,
    Reply,
    Result,
    Search,
    ask_decoder,
    encode,
)
from qa_service.wire.frames import FrameReader
from qa_service.wire.messages import Passage
from tests.simulation.network import Peer, SimulatedSocket
from tests.simulation.world import World

CHANNEL_BYTES = 1 << 18
START_S, OPEN_S, SEARCH_S = 0.02, 0.005, 0.001
PASSAGE_START = 100
"""Where a passage starts in its document."""
COLLECTION = "docs"
DECOY = "the notes of Ada say that"


@dataclass
class Library:
    """All search processes, what they find, and what is wrong with them.

    Attributes:
        texts: By question, the text that answers it.
        bad_starts: How the next processes fail to start: `refuse`, `die`.
        bad_work: What becomes of the next pieces of work: `die`, `hang`, `damaged`, `garbage`.
        processes: Those that have not ended.
        edition: Of the index; another each time that documents are indexed.
    """

    world: World
    texts: dict[str, str] = field(default_factory=dict)
    bad_starts: deque[str] = field(default_factory=deque)
    bad_work: deque[str] = field(default_factory=deque)
    processes: list[SearchProgram] = field(default_factory=list)
    edition: int = 1

    def heal(self) -> None:
        """Nothing is wrong from now on; what hangs is still hung."""
        self.bad_starts.clear()
        self.bad_work.clear()

    def kill(self) -> None:
        for process in list(self.processes):
            process.kill()

    def start_program(self, *_: object, **__: object) -> tuple[SearchProgram, SimulatedSocket]:
        start = self.bad_starts.popleft() if self.bad_starts else ""
        if start == "refuse":
            raise OSError("out of processes")
        process = SearchProgram(self, start)
        return process, process.sock


class SearchProgram(Peer):
    """A search process: what `subprocess.Popen` gives, and the program."""

    pid = 1

    def __init__(self, library: Library, start: str) -> None:
        self._library, self._world = library, library.world
        self.sock = SimulatedSocket(self._world, self, CHANNEL_BYTES)
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        self._asks: deque[Ask] = deque()
        self._has_started = self._is_busy = False
        self._code: int | None = None
        self._open: set[str] = set()
        library.processes.append(self)
        self._world.work(START_S, (lambda: self._end(1)) if start == "die" else self._begin)

    # As `subprocess.Popen`.

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        self._end(-9)

    # The program.

    def pump(self) -> None:
        if self._code is not None:
            return
        self._frames.feed(self.sock.take(CHANNEL_BYTES))
        while (frame := self._frames.next_frame()) is not None:
            self._asks.append(ask_decoder.decode(frame))
        if self.sock.out_ended:
            self._end(0)
        self._work()

    def _begin(self) -> None:
        self._has_started = True
        self._work()

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._library.processes.remove(self)
            self.sock.end_input()

    def _work(self) -> None:
        if self._is_busy or self._code is not None or not (self._has_started and self._asks):
            return
        self._is_busy = True
        ask = self._asks.popleft()
        bad_work = self._library.bad_work
        fault = bad_work.popleft() if bad_work else ""
        took_s = SEARCH_S if isinstance(ask.work, Search) else OPEN_S
        if fault != "hang":
            self._world.work(took_s, lambda: self._finish(ask, fault))

    def _finish(self, ask: Ask, fault: str) -> None:
        if self._code is not None:
            return
        self._is_busy = False
        if fault == "die":
            self._end(-7)
        elif fault == "garbage":
            self.sock.deliver(b"\0\0\0\3???")
        else:
            assert isinstance(ask.work, Open | Close | Search)
            self.sock.deliver(bytes(encode(Reply(ask.number, self._do(ask.work, fault)))))
        self._work()

    def _do(self, work: Open | Close | Search, fault: str) -> Result:
        if isinstance(work, Close):
            self._open.discard(work.collection)
            return Closed()
        if fault == "damaged":
            is_open = isinstance(work, Open) and not work.is_fresh and work.collection in self._open
            return Refused("damaged", "damaged", is_open)
        if isinstance(work, Open):
            self._open.add(work.collection)
            return Opened(str(self._library.edition))
        if work.collection not in self._open:
            return Refused("it is not open", "damaged")
        return Found(self._find(work), SEARCH_S * 1e3)

    def _find(self, work: Search) -> list[FoundPassage]:
        texts = {"right": self._library.texts[work.question], "decoy": DECOY}
        found = [
            Passage(name, "", "", PASSAGE_START, PASSAGE_START + len(text), text)
            for name, text in texts.items()
        ]
        return [FoundPassage(5.0, found[0]), FoundPassage(3.0, found[1])][: work.max_passages]
