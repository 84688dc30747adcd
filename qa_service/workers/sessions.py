"""The sessions that serve, through every reload of their model.

    reload: a next pool starts ──all its sessions ready──▶ it serves; the old one retires
                               ──one cannot start──▶ it is closed; the old one serves on

A retiring pool finishes what it runs. So no request notices a reload, but that there are twice
as many sessions in memory while it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from qa_service.placement import Place
from qa_service.scheduler import Ticket
from qa_service.workers.base import Worker
from qa_service.workers.channel import Results
from qa_service.workers.pool import PoolOwner, WorkerPool

logger = logging.getLogger(__name__)


class SessionsOwner(Protocol):
    """Who hears from the sessions: the server."""

    def on_sessions_ready(self) -> None:
        """Every session has answered its warmup question; after the start, and each reload."""

    def on_session_restart(self) -> None:
        """A session has died and is to be started anew."""

    def on_sessions_failure(self, message: str) -> None:
        """No session serves, and none can be started."""

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """A batch is finished."""

    def on_tickets_lost(self, tickets: Sequence[Ticket], were_running: bool) -> None:
        """A session died with these; they may be retried. Any that ran may be what killed it."""


class Sessions:
    """The pool that serves, the one that is to take its place, and those that end.

    Args:
        make_pool: Makes a pool for an owner, of the model as it is on disk by then.
        owner: Who hears of results and losses.
    """

    def __init__(self, make_pool: Callable[[PoolOwner], WorkerPool], owner: SessionsOwner) -> None:
        self._make_pool = make_pool
        self._owner = owner
        self._serving = make_pool(self)
        self._next: WorkerPool | None = None
        self._ending: list[WorkerPool] = []
        self._reload_again = False

    def start(self) -> None:
        """Starts every session."""
        self._serving.start()

    def reload(self) -> None:
        """Loads the model anew in fresh sessions; asked again meanwhile, once more after that."""
        if self._next:
            self._reload_again = True
            return
        logger.info("reloading the model")
        self._ending = [pool for pool in self._ending if not pool.is_gone]
        self._next = self._make_pool(self)
        self._next.start()

    @property
    def workers(self) -> Iterable[Worker]:
        """Those that serve, in whatever state they are."""
        return self._serving.workers

    @property
    def alive(self) -> int:
        """Sessions that serve."""
        return self._serving.sessions_alive

    def answering(self, since_s: float) -> int:
        """Sessions alive that have answered lately: idle ones, or busy only since that time."""
        return self._serving.sessions_answering(since_s)

    @property
    def places(self) -> list[Place]:
        """Where the sessions run that serve, in the order of their numbers."""
        return self._serving.places

    @property
    def model(self) -> str:
        """The name of the model that serves."""
        return self._serving.model

    def run(self, worker: Worker, tickets: Sequence[Ticket]) -> None:
        """Gives one of those that serve a batch."""
        self._serving.run(worker, tickets)

    def close(self) -> None:
        """Hangs up on every session."""
        self._reload_again = False
        for pool in self._pools():
            pool.close()

    def kill(self) -> None:
        """Ends what has been hung up on and not ended yet."""
        for pool in self._pools():
            pool.kill()

    def reap(self) -> bool:
        """Forgets what has ended; says whether nothing is left."""
        for pool in self._pools():
            pool.reap()
        return all(pool.is_gone for pool in self._pools())

    def _pools(self) -> list[WorkerPool]:
        return [pool for pool in (self._serving, self._next, *self._ending) if pool]

    def on_pool_ready(self, pool: WorkerPool) -> None:
        """See `PoolOwner`."""
        if pool is self._next:
            logger.info("the reloaded model serves")
            self._serving.retire()
            self._ending.append(self._serving)
            self._serving, self._next = pool, None
        self._owner.on_sessions_ready()
        self._reload_if_asked_again()

    def on_pool_failure(self, pool: WorkerPool, message: str) -> None:
        """See `PoolOwner`."""
        if pool is self._next:
            logger.error("reload failed, the old model serves on: %s", message)
            pool.close()
            pool.kill()
            self._ending.append(pool)
            self._next = None
            self._reload_if_asked_again()
        else:
            self._owner.on_sessions_failure(message)

    def _reload_if_asked_again(self) -> None:
        if self._reload_again:
            self._reload_again = False
            self.reload()

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """See `PoolOwner`."""
        self._owner.on_results(tickets, results)

    def on_session_restart(self) -> None:
        """See `PoolOwner`."""
        self._owner.on_session_restart()

    def on_tickets_lost(self, tickets: Sequence[Ticket], were_running: bool) -> None:
        """See `PoolOwner`."""
        self._owner.on_tickets_lost(tickets, were_running)
