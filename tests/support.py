"""What several tests need: a loop that is run until a condition holds."""

from __future__ import annotations

from collections.abc import Callable

from qa_service.net.event_loop import EventLoop

DEADLINE_S = 20.0


def run_until(loop: EventLoop, condition: Callable[[], bool]) -> None:
    """Runs the loop, round upon round, until the condition holds; fails if it never does."""
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        loop.stop()

    def check() -> None:
        if condition():
            loop.stop()
        loop.call_soon(lambda: None)

    loop.call_soon(lambda: None)
    timer = loop.call_at(loop.now_s() + DEADLINE_S, give_up)
    loop.after_each = check
    loop.run()
    timer.cancel()
    assert not late, "the condition never held"
