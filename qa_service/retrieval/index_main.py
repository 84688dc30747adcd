"""Makes a collection of documents for questions; the program qa-index.

    qa-index docs/ --output collections/handbook
    qa-index docs/ --output collections/handbook --update
    qa-index docs/ --output collections/handbook --watch
    qa-index --text docs/install.md

A run that was killed resumes when it is started again. The exit code is 0, or 1 if a file or a part
of one was left out, or 2 if there is no collection. With --watch, SIGTERM and Ctrl-C end the
program with 0. See docs/COLLECTIONS.md.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from qa_service.child_program import turn_off_telemetry
from qa_service.command_line import INTERRUPTED, at_least, count, make_parser
from qa_service.errors import SetupError
from qa_service.logs import complain, printable
from qa_service.machine import num_cpus
from qa_service.progress import progress_bar
from qa_service.retrieval.build import (
    LANGUAGE,
    IndexArgs,
    Reporter,
    Seen,
    Summary,
    build,
    list_files,
    read_documents,
)
from qa_service.retrieval.documents import Document, Fault, ReadLimits
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER
from qa_service.retrieval.files import Found, SourceFile
from qa_service.retrieval.manifest import MANIFEST_FILE
from qa_service.retrieval.passages import PASSAGE_TOKENS
from qa_service.retrieval.tantivy_index import LANGUAGES
from qa_service.retrieval.writing import EmptyError

_MIN_PASSAGE_TOKENS = 20
"""About a sentence: a shorter passage answers nothing by itself."""
INTERVAL_S = 1.0
"""Between two listings."""
MAX_LOAD = 0.05
"""Of a core, that listing may take: many files are listed less often."""
MAX_CHANGE_S = 30.0
"""After so long files are indexed even if some are still being written."""
MAX_RETRY_S = 60.0
"""What failed is tried again after 1 s, 2 s, … this, or when files change."""

Index = Callable[[Found, Seen], None]


def main(arguments: Sequence[str] | None = None) -> int:
    turn_off_telemetry()
    parser = _parser()
    flags = vars(parser.parse_args(arguments))
    is_watching, is_text = flags.pop("watch"), flags.pop("text")
    if is_text:
        flags["output"] = Path(os.devnull)
    elif flags["output"] is None:
        parser.error("--output is missing")
    args = _args(flags | {"update": flags["update"] or is_watching})
    try:
        return (_print_texts if is_text else _watch if is_watching else _build)(args)
    except SetupError as error:
        complain(error)
        return error.exit_code


def _build(args: IndexArgs) -> int:
    try:
        with progress_bar(unit="B", unit_scale=True) as bar:
            summary = build(args, _Bar(bar))
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on")
        return INTERRUPTED
    print(_described(summary, args))
    return int(summary.faulty > 0)


def _watch(args: IndexArgs) -> int:
    """Indexes what changes, until a signal ends it; `SetupError` if that fails at first."""
    faults: Collection[str] = ()
    is_first = True

    def index(found: Found, seen: Seen) -> None:
        nonlocal faults, is_first
        with progress_bar(unit="B", unit_scale=True, leave=False) as bar:
            reporter = _Bar(bar, faults)
            summary = build(args, reporter, found, seen)
        faults = reporter.faults
        if summary.is_new or is_first:
            print(_described(summary, args), flush=True)
        is_first = False

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        watcher = Watcher(args, index)
        watcher.index(list_files(args))
        while True:
            time.sleep(watcher.pause_s)
            watcher.look()
    except KeyboardInterrupt:
        return 0


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Ends what is being done as Ctrl-C does; a second signal changes nothing."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print_texts(args: IndexArgs) -> int:
    """Prints what the sources' documents are, which answers and offsets are of."""
    num_faults = 0
    for message in read_documents(args):
        if isinstance(message, Document):
            print(message.text)
        else:
            num_faults += 1
            complain(f"left out: {message.where}: {message.why}")
    return int(num_faults > 0)


class _Bar(Reporter):
    """Shows the progress, and the files left out.

    Args:
        known_faults: Lines that were shown before.

    Attributes:
        faults: The lines of this run.
    """

    def __init__(self, bar: tqdm, known_faults: Collection[str] = ()) -> None:
        self._bar = bar
        self._known_faults = known_faults
        self.faults: set[str] = set()
        self._passages = 0

    def on_note(self, line: str) -> None:
        self._print(line)

    def on_files(self, size_bytes: int) -> None:
        self._bar.total = size_bytes

    def on_fault(self, line: str) -> None:
        self.faults.add(line)
        if line not in self._known_faults:
            self._print(f"left out: {line}")

    def on_passages(self, number: int) -> None:
        self._passages += number
        self._bar.set_postfix_str(f"{self._passages} passages", refresh=False)
        self._bar.update(0)

    def on_file_done(self, size_bytes: int) -> None:
        self._bar.update(size_bytes)

    def _print(self, line: str) -> None:
        self._bar.write(printable(line), file=sys.stderr)


def _described(summary: Summary, args: IndexArgs) -> str:
    names = summary.first_others + ["…"] * (summary.others > len(summary.first_others))
    counts = {
        "read": summary.read,
        "unchanged": summary.kept,
        "gone": summary.removed,
        f"of other kinds ({', '.join(map(printable, names))})": summary.others,
        "empty": summary.empty,
        "with faults": summary.faulty,
    }
    files = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    return (
        f"{args.output}: {summary.documents} documents, {summary.passages} passages"
        f" (files: {files or 'none'})"
    )


def _args(flags: dict[str, Any]) -> IndexArgs:
    names = ("max_file_bytes", "max_document_cpu_s", "max_memory_bytes")
    limits = ReadLimits(**{name: flags.pop(name) for name in names})
    return IndexArgs(sources=tuple(flags.pop("sources")), limits=limits, **flags)


def _parser() -> argparse.ArgumentParser:
    limits = ReadLimits()
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("sources", nargs="+", type=Path, metavar="SOURCE", help="a folder, or a file, to read")
    add("--output", type=Path, help="the collection's folder")
    text = "print the documents' texts, of which offsets are, and make no collection"
    add("--text", action="store_true", help=text)
    links = "read files outside the folders that links in them lead to"
    add("--follow_links", action="store_true", help=links)
    kept = "keep what has not changed, and the collection's language and passage_tokens"
    add("--update", action="store_true", help=kept)
    follow = "update now, and go on to do so whenever files change, until SIGTERM or Ctrl-C"
    add("--watch", action="store_true", help=follow)
    stems = f"whose word stems are searched for ({LANGUAGE} if not given): {', '.join(LANGUAGES)}"
    add("--language", choices=LANGUAGES, metavar="LANGUAGE", help=stems)
    passages = f"about how long passages are ({PASSAGE_TOKENS} if not given)"
    add("--passage_tokens", type=at_least(_MIN_PASSAGE_TOKENS), help=passages)
    meaning = "embed passages, so that they are found by their meaning too; so are English ones "
    meaning += "if neither is given"
    add("--embeddings", action="store_true", default=None, help=meaning)
    words = "find passages by their words alone: no encoder is needed"
    no = add("--no-embeddings", "--no_embeddings", action="store_false", dest="embeddings")
    no.default, no.help = None, words
    encoder = f"the encoder's folder, which prepare_model.py makes ({DEFAULT_ENCODER} if not given)"
    add("--encoder", type=Path, metavar="DIRECTORY", help=encoder)
    threads = "processes that read files, and threads that embed passages; one a CPU if not given"
    add("--num_threads", type=count, default=num_cpus(), help=threads)
    file = "longest file, unpacked; of JSON lines, the longest line"
    add("--max_file_bytes", type=count, default=limits.max_file_bytes, help=file)
    document = "longest time of a processor for reading a document and cutting it into passages"
    add("--max_document_cpu_s", type=count, default=limits.max_document_cpu_s, help=document)
    memory = "most address space of the process that reads files"
    add("--max_memory_bytes", type=count, default=limits.max_memory_bytes, help=memory)
    return parser


class Watcher:
    """Lists the files again and again: that finds changes on every file system, of any number.

    They are indexed once two listings are the same, since programs write files in steps, and a copy
    or a checkout writes thousands. What was changed while it was read differs from the listing, and
    so is read again.

    Args:
        index: Has files indexed, given what the run before has seen.

    Attributes:
        pause_s: How long to wait before the next look.
    """

    def __init__(
        self, args: IndexArgs, index: Index, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._args = args
        self._index = index
        self._now_s = now_s
        self._seen: Seen = {}
        self._tried: _Listing | None = None
        self._before: _Listing | None = None
        self._changed_s = math.inf
        self._again_s = math.inf
        self._retry_s = INTERVAL_S
        self._has_index = False
        self._said = ""
        self.pause_s = INTERVAL_S

    def look(self) -> None:
        """Lists the files, and has them indexed if that is due."""
        now_s, started_s = self._now_s(), time.thread_time()
        try:
            found = list_files(self._args)
        except SetupError as error:
            self._say(f"{error}: the collection stays as it is")
            return
        finally:
            self.pause_s = max(INTERVAL_S, (time.thread_time() - started_s) / MAX_LOAD)
        listing = _listing(found)
        is_still, self._before = listing == self._before, listing
        is_lost = self._has_index and not (self._args.output / MANIFEST_FILE).exists()
        if listing == self._tried and now_s < self._again_s and not is_lost:
            self._changed_s = math.inf
            if self._again_s == math.inf:
                self._said = ""
            return
        self._changed_s = min(self._changed_s, now_s)
        if is_still or now_s - self._changed_s >= MAX_CHANGE_S:
            try:
                self.index(found)
            except SetupError as error:
                self._say(str(error))

    def index(self, found: Found) -> None:
        """Has files indexed now.

        Raises:
            SetupError: They cannot be; it is tried again later.
        """
        listing = _listing(found)
        if listing != self._tried:
            self._retry_s = INTERVAL_S
        self._tried = listing
        self._changed_s, self._has_index = math.inf, False
        is_done = False
        try:
            self._index(found, self._seen)
            # Others could not be read, or were changed meanwhile.
            is_done = len(self._seen) == len(found.files)
            self._has_index, self._said = True, ""
        except EmptyError as error:
            is_done = True
            self._say(str(error))
        finally:
            self._again_s = math.inf if is_done else self._now_s() + self._retry_s
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _say(self, words: str) -> None:
        if words != self._said:
            complain(words)
        self._said = words


_Listing = tuple[list[SourceFile], list[Fault]]


def _listing(found: Found) -> _Listing:
    """What is compared: files of other kinds do not matter."""
    return found.files, found.faults


if __name__ == "__main__":
    sys.exit(main())
