"""The program that opens collections and searches them.

    python -m qa_service.retrieval.search_main FD PARENT THREADS ENCODER LEVEL FORMAT [check]

does the work that comes on its descriptor, in THREADS threads, and replies to each piece. With
`check` it opens no index on disk, but only looks whether it could, and writes nothing. A damaged
index, a file that is cut while it is mapped, a disk or a cluster that does not answer end or hold
this process, and no other.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from qa_service.child_program import end_with_parent
from qa_service.errors import DamagedError, InvalidRequestError, QaError, SetupError
from qa_service.logs import configure_logging, printable
from qa_service.retrieval.collection import Collection, find_fault
from qa_service.retrieval.encoder_folder import SharedEncoder
from qa_service.retrieval.manifest import MANIFEST_FILE
from qa_service.retrieval.open_search import OpenSearchIndex
from qa_service.retrieval.search_messages import (
    MAX_MESSAGE_BYTES,
    Close,
    Closed,
    Count,
    Found,
    Kind,
    List,
    Listed,
    Open,
    Opened,
    Refused,
    Reply,
    Result,
    Search,
    Work,
    ask_decoder,
    encode,
)
from qa_service.wire.frames import FrameReader, receive_frame

MAX_DATA_BYTES = 4 << 30
"""Of memory that is not a mapped file: a damaged length must not take the machine's."""
MAX_REASON_CHARS = 300
"""A log line's worth: a library's message may hold what it read."""

LOG_AGAIN_S = 10.0
"""How often a stack is logged: each search of a damaged index may fail."""

OpenIndex = Collection | OpenSearchIndex
logger = logging.getLogger(__name__)


class Searcher:
    """Does one piece of work after another; several threads may call `do` at once."""

    def __init__(self, encoder: SharedEncoder, *, only_checks: bool = False) -> None:
        self._encoder = encoder
        self._only_checks = only_checks
        self._quiet_until_s = 0.0
        self._odd: list[Path] = []
        self._open: dict[str, tuple[Open, OpenIndex]] = {}

    def do(self, work: Work) -> Result:
        """Does it; what goes wrong is a result too.

        A panic of tantivy is a `BaseException`; it leaves locks of the index poisoned, so that the
        loop has the index opened afresh.
        """
        try:
            return self._done(work)
        except DamagedError as error:
            return self._refused(work, str(error), "damaged")
        except SetupError as error:
            return self._refused(work, str(error), "setup")
        except InvalidRequestError as error:
            return self._refused(work, error.message, "request")
        except QaError as error:
            return self._refused(work, error.message, "unavailable")
        except BaseException as error:
            now_s = time.monotonic()
            if now_s >= self._quiet_until_s:
                self._quiet_until_s = now_s + LOG_AGAIN_S
                logger.exception("a search failed")
            words = " ".join(str(error).split())[:MAX_REASON_CHARS]
            return self._refused(work, f"{type(error).__name__}: {words}", "damaged")

    def _refused(self, work: Work, reason: str, kind: Kind) -> Refused:
        is_open = isinstance(work, Open) and work.collection in self._open
        return Refused(printable(reason), kind, is_open)

    def _done(self, work: Work) -> Result:
        match work:
            case Open():
                return self._open_one(work)
            case Close(collection):
                self._open.pop(collection, None)
                return Closed()
            case List(folder):
                return self._list(Path(folder))
            case Count(collection, question):
                return self._index(collection).count_words(question)
            case Search(collection, question, max_passages, wanted, counts):
                index, started_s = self._index(collection), time.monotonic()
                found = index.search(question, max_passages, wanted, counts)
                left_out = index.take_left_out() if isinstance(index, OpenSearchIndex) else 0
                return Found(found, (time.monotonic() - started_s) * 1e3, left_out)

    def _open_one(self, work: Open) -> Result:
        path, url = Path(work.path), work.url
        if self._only_checks and work.path:
            return Opened("", printable(find_fault(path, self._encoder)))
        if work.is_fresh:
            self._open.pop(work.collection, None)
        its, index = self._open.get(work.collection, (None, None))
        if index is None or its != work:
            index = Collection(path, self._encoder) if work.path else OpenSearchIndex(url)
        its = Open(work.collection, work.path, url)
        self._open[work.collection] = its, index
        index = index.refreshed()
        self._open[work.collection] = its, index
        return Opened(printable(index.identity), printable(index.fault))

    def _list(self, folder: Path) -> Result:
        if not folder.is_dir():
            raise SetupError(f"--collections_dir {folder}: there is no such folder")
        paths = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_FILE}"))
        # Python has halves of surrogate pairs, which UTF-8 has not, for bytes that are none of it.
        odd = [path for path in paths if str(path).encode(errors="ignore") != os.fsencode(path)]
        for path in odd:
            if path not in self._odd:
                words = "the collection in the folder %a is not served: its name is no UTF-8"
                logger.warning(words, path)
        self._odd = odd
        return Listed({path.name: str(path) for path in paths if path not in odd})

    def _index(self, collection: str) -> OpenIndex:
        if collection not in self._open:
            raise DamagedError("it is not open")
        return self._open[collection][1]


def _encoded(number: int, result: Result) -> bytearray:
    """A reply's frame; of what cannot be sent, that of an error."""
    try:
        return encode(Reply(number, result))
    except (ValueError, OverflowError) as error:
        logger.exception("what a search has found cannot be sent")
        return encode(Reply(number, Refused(f"{type(error).__name__} in what it found", "damaged")))


def serve(sock: socket.socket, num_threads: int, searcher: Searcher) -> None:
    """Carries out messages until the loop's end is closed."""
    frames = FrameReader(MAX_MESSAGE_BYTES)
    reading, writing = threading.Lock(), threading.Lock()

    def work() -> None:
        while True:
            with reading:
                asked = receive_frame(frames, sock.recv)
            if asked is None:
                return
            ask = ask_decoder.decode(asked)
            frame = _encoded(ask.number, searcher.do(ask.work))
            try:
                with writing:
                    sock.sendall(frame)
            except OSError:  # the server has ended, and reads no more
                return

    for _ in range(num_threads - 1):
        threading.Thread(target=work, daemon=True).start()
    work()


def main() -> None:
    """Searches for the server at the other end of the inherited descriptor."""
    fd, parent, num_threads, encoder, log_level, log_format, *only_checks = sys.argv[1:]
    end_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    configure_logging(log_level, log_format)
    logging.getLogger("opensearch").setLevel(logging.ERROR)  # else a line for each failed request
    with socket.socket(fileno=int(fd)) as sock:
        searcher = Searcher(SharedEncoder(Path(encoder)), only_checks=bool(only_checks))
        serve(sock, int(num_threads), searcher)
    os._exit(0)  # a thread may hang in a search that nobody waits for


if __name__ == "__main__":
    main()
