"""Collections: whether their indexes could be opened, by the program that searches them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from qa_service.net.event_loop import EventLoop
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import ServerConfig
from qa_service.server.deployment import collections_of, encoder_of
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.searches import search_program
from qa_service.server.telemetry.services import ServiceCounts

GIVE_UP_S = 60.0
"""For all collections together; an index is opened within a second."""


def check_collections(config: ServerConfig) -> Iterator[Finding]:
    """Compares each index with its checksums, tries its encoder, and reaches its cluster."""
    if not config.collections and config.repository.collections_dir is None:
        yield ok("there are no collections")
        return
    loop = EventLoop()
    launch = partial(search_program, config.logs, encoder_of(config), only_checks=True)
    collections = CollectionSet(loop, launch, ServiceCounts(), config.queue.max_queue_size)
    try:
        collections.use(collections_of(config), config.repository.collections_dir)
        _run_until_opened(loop, collections)
        faults = collections.faults()
        for name, state in collections.states().items():
            if name in faults:
                yield warning(f"{name}: {faults[name]}", "qa-index makes it again")
            else:
                yield ok(f"{name}: {state}")
        if reason := collections.failure:
            yield error(reason)
    finally:
        collections.kill()
        while not collections.reap():
            time.sleep(0.01)
        loop.close()


def _run_until_opened(loop: EventLoop, collections: CollectionSet) -> None:
    over_s = loop.now_s() + GIVE_UP_S

    def look() -> None:
        if collections.has_started or loop.now_s() >= over_s:
            loop.stop()

    loop.after_each = look
    loop.call_at(over_s, lambda: None)
    loop.call_soon(lambda: None)
    loop.run()
