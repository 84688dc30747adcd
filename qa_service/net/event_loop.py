"""The event loop: sockets, timers and signals, one thread, the only user of `selectors`.

Callbacks may not block or take long. A signal only writes its number into the wakeup socketpair
(`signal.set_wakeup_fd`), where the loop reads it.

    each round: ready sockets ▸ call_soon ▸ timers ▸ on_mark, if marked ▸ after_each

What may block, as a file on a mount that hangs may, runs in a separate thread (`run_in_thread`).

The process may have been stopped (SIGSTOP), its machine suspended or moved. Then time has passed in
which it could not look at its sockets: they are looked at once more before the timers run, so that
nothing is late that had come in time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from qa_service.net.timers import Callback, Timer, TimerQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_S = 1.0
"""The longest wait; an event is late by at most this and `PAUSE_S`."""
PAUSE_S = 1.0
"""A round that takes this much longer than it was to wait has had a pause."""


class EventLoop:
    """Waits for sockets, timers and signals, and calls back.

    Attributes:
        on_mark: Called at the end of every round with a mark; if it marks again, another round
            follows at once.
        last_pause_s: When the last pause ended; minus infinity if there was none. No time that
            began before it is a measurement.
    """

    now_s = staticmethod(time.monotonic)
    max_wait_s = MAX_WAIT_S

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers = TimerQueue()
        self._soon: list[Callback] = []
        self._from_threads: deque[Callback] = deque()
        self._signal_callbacks: dict[int, Callback] = {}
        self.last_pause_s = -math.inf
        self._waited_s, self._first_cpu_s = 0.0, time.thread_time()
        self._looked_s = self.now_s()
        self._running = False
        self._is_marked = False
        self.on_mark: Callback = lambda: None
        self.after_each: Callback = lambda: None
        self._wakeup_in, self._wakeup_out = socket.socketpair()
        self._wakeup_in.setblocking(False)
        self._wakeup_out.setblocking(False)
        self.watch(self._wakeup_in, self._on_wakeup)

    def watch(
        self,
        sock: socket.socket,
        on_readable: Callback | None = None,
        on_writable: Callback | None = None,
    ) -> None:
        """Replaces a socket's callbacks; with neither, the socket is not watched."""
        events = (selectors.EVENT_READ if on_readable else 0) | (
            selectors.EVENT_WRITE if on_writable else 0
        )
        known = sock in self._selector.get_map()
        if known and events:
            self._selector.modify(sock, events, (on_readable, on_writable))
        elif known:
            self._selector.unregister(sock)
        elif events:
            self._selector.register(sock, events, (on_readable, on_writable))

    @property
    def times(self) -> dict[str, float]:
        """Where this thread's time has gone, in seconds: on a core, and waiting for events."""
        cpu_s = time.thread_time() - self._first_cpu_s
        return {"cpu": round(cpu_s, 6), "waiting": round(self._waited_s, 6)}

    def call_at(self, when_s: float, callback: Callback) -> Timer:
        return self._timers.add(when_s, callback)

    def call_soon(self, callback: Callback) -> None:
        self._soon.append(callback)

    def run_in_thread(self, work: Callable[[], T], on_end: Callable[[T | Exception], None]) -> None:
        """Runs a function that may block, and calls back with its result or error.

        The end of the program does not wait for it.
        """

        def run() -> None:
            outcome: T | Exception
            try:
                outcome = work()
            except Exception as error:  # whoever asked for it handles it
                outcome = error
            self._from_threads.append(lambda: on_end(outcome))
            with contextlib.suppress(OSError):  # full: the loop wakes anyway; closed: it has ended
                self._wakeup_out.send(b"\0")

        try:
            threading.Thread(target=run, name="run_in_thread", daemon=True).start()
        except RuntimeError as error:  # there are as many as may be
            self.call_soon(partial(on_end, OSError(str(error))))

    def mark(self) -> None:
        """Has `on_mark` called at the end of this round."""
        self._is_marked = True

    def on_signal(self, signum: int, callback: Callback) -> None:
        """Calls back from the loop after a signal. Main thread only."""
        self._signal_callbacks[signum] = callback
        signal.set_wakeup_fd(self._wakeup_out.fileno(), warn_on_full_buffer=False)
        signal.signal(signum, lambda _signum, _frame: None)

    def run(self) -> None:
        self._running = True
        self._looked_s = self.now_s()
        while self._running:
            self._round()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        """Restores the signals' defaults and closes the wakeup socketpair."""
        for signum in self._signal_callbacks:
            signal.signal(signum, signal.SIG_DFL)
        if self._signal_callbacks:
            signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wakeup_in.close()
        self._wakeup_out.close()

    def _round(self) -> None:
        wait_s = 0.0
        if not (self._soon or self._is_marked):
            due_s = self._timers.next_due_s()
            wait_s = min(self.max_wait_s, max(0.0, due_s - self.now_s()))
        self._poll(wait_s)
        now_s = self.now_s()
        paused_s, self._looked_s = now_s - self._looked_s - wait_s, now_s
        if paused_s > PAUSE_S:
            logger.warning("nothing ran for %.1f s: the process or its machine paused", paused_s)
            self.last_pause_s = now_s
            self._poll(0.0)
        soon, self._soon = self._soon, []
        for callback in soon:
            self._call(callback)
        now_s = self.now_s()
        while timer := self._timers.pop_due(now_s):
            self._call(timer)
        if self._is_marked:
            self._is_marked = False
            self._call(self.on_mark)
        self._call(self.after_each)

    def _poll(self, wait_s: float) -> None:
        began_s = self.now_s()
        ready = self._selector.select(None if wait_s == math.inf else wait_s)
        self._waited_s += self.now_s() - began_s
        for key, events in ready:
            on_readable, on_writable = key.data
            if events & selectors.EVENT_WRITE and on_writable:
                self._call(on_writable)
            if events & selectors.EVENT_READ and on_readable:
                self._call(on_readable)

    @staticmethod
    def _call(callback: Callback) -> None:
        """Logs an exception: one callback's fault must not stop the others."""
        try:
            callback()
        except Exception:
            logger.exception("a callback of the event loop failed")

    def _on_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for signum in self._wakeup_in.recv(4096):
                if callback := self._signal_callbacks.get(signum):
                    callback()
        while self._from_threads:
            self._call(self._from_threads.popleft())
