"""A search process without a process: the test says what it replies, and when it dies."""

from __future__ import annotations

from qa_service.retrieval.messages import Close, Closed, Found, Open, Opened


class FakeProcess:
    """Remembers what it is asked.

    Attributes:
        asked: What it has not replied to, by number.
        identity: Of the indexes that it opens.
    """

    def __init__(self, name, concurrency, listener):
        self.name, self.concurrency, self.listener = name, concurrency, listener
        self.asked, self.works = {}, []
        self.is_running = self.is_killed = False
        self.identity, self.starts = "one", 0

    def start(self):
        self.starts += 1
        self.is_running = True
        self.listener.on_process_start()

    def ask(self, work):
        number = len(self.works)
        self.works.append(work)
        self.asked[number] = work
        return number

    def replace(self):
        self.die()

    def kill(self):
        self.is_running, self.is_killed = False, True

    def reap(self):
        return not self.is_running

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
        self.listener.on_result(number, result)

    def find(self, passages=(), took_ms=0.5):
        self.reply(Found(list(passages), took_ms))

    def die(self):
        self.is_running, self.asked = False, {}
        self.listener.on_process_death()

    @property
    def waiting(self):
        """What it is at."""
        return list(self.asked.values())
