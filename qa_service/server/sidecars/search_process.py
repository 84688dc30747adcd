"""The loop's side of a search process: it is asked, replies, and is started again when it dies."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Protocol

from qa_service.child_program import start_program
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.retrieval.messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Result,
    Work,
    encode,
    reply_decoder,
)
from qa_service.server.children.child import Child

SEARCH_PROGRAM = "qa_service.retrieval.search_main"
MAX_BACKOFF_S = 1.0
"""Searches wait for a restart, which takes a fifth of a second of a core."""


class SearchListener(Protocol):
    """Hears from a search process."""

    def on_process_start(self) -> None:
        """A new process can be asked; it has nothing open."""

    def on_result(self, number: int, result: Result) -> None:
        """A piece of work is done, or could not be."""

    def on_process_death(self) -> None:
        """The process has ended, with the work it had."""


class SearchProcess:
    """A process that searches.

    Args:
        encoder: The folder of what embeds questions.
        name: Of what is searched, for the log.
        num_threads: How many pieces of work it does at a time.
    """

    def __init__(  # noqa: PLR0917
        self,
        loop: EventLoop,
        logs: LogOptions,
        encoder: Path,
        name: str,
        num_threads: int,
        listener: SearchListener,
    ) -> None:
        self._listener = listener
        self._numbers = itertools.count()
        arguments = (str(num_threads), str(encoder), logs.log_level, logs.log_format)
        self._child = Child(
            loop,
            f"the search process of {name}",
            partial(start_program, SEARCH_PROGRAM, *arguments),
            on_data=self._on_reply,
            max_frame_bytes=MAX_MESSAGE_BYTES,
            on_start=listener.on_process_start,
            on_end=self._on_end,
            max_backoff_s=MAX_BACKOFF_S,
        )

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return self._child.is_running

    def start(self) -> None:
        """Starts it, now or as soon as it can be."""
        self._child.try_start()

    def ask(self, work: Work) -> int:
        """Has it do a piece of work; returns the number that the result will have."""
        number = next(self._numbers)
        self._child.write(encode(Ask(number, work)))
        return number

    def replace(self) -> None:
        """Kills it, as it hangs: it has died, and another starts."""
        self._child.end("it hangs")

    def kill(self) -> None:
        """Ends it for good; its work is lost."""
        self._child.kill()

    def reap(self) -> bool:
        """Whether it has ended."""
        return self._child.reap()

    def _on_reply(self, data: bytes) -> None:
        reply = reply_decoder.decode(data)
        self._listener.on_result(reply.number, reply.result)

    def _on_end(self) -> None:
        self._child.start_later()
        self._listener.on_process_death()
