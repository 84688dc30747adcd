"""Loads whose every answer is checked, over `qa_service.programs.load`.

An answer is right if the same question got it in a quiet run. Any other outcome has an error code:
the server's own, `wrong_answer`, `connection_lost` for a request without a reply, `protocol_error`
for a reply to nothing that was asked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from qa_service.client import QaClient
from qa_service.data.squad import OWN_QUESTIONS, SquadQuestion, read_squad
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import LoadPlan, Report, Sample
from qa_service.programs.load.wire import Reply


class QuietAnswers:
    """A quiet server's answers to the questions that ship with the project."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.questions = read_squad(OWN_QUESTIONS)
        pairs = [(question.question, question.context) for question in self.questions]
        with QaClient("localhost", port) as client:
            answers = [client.ask(*pair) for pair in pairs]
        self._answers = {
            pair: (answer.answer, answer.start) for pair, answer in zip(pairs, answers, strict=True)
        }

    def check(self, question: SquadQuestion, reply: Reply) -> str:
        """The error code of an answer; empty if it is the quiet one."""
        quiet = self._answers[question.question, question.context]
        return "" if (reply.answer, reply.start) == quiet else "wrong_answer"

    def plan(self, num_clients: int, duration_s: float, **fields: Any) -> LoadPlan:
        """A load of these questions, whose answers are compared with the quiet ones."""
        return LoadPlan(
            "127.0.0.1",
            self._port,
            self.questions,
            num_simultaneous_clients=num_clients,
            duration_s=duration_s,
            check=self.check,
            **fields,
        )


def report_of(plan: LoadPlan) -> Report:
    """Makes a load to its end, and reports on it."""
    return Report.of([sample for batch in run_load(plan) for sample in batch])


def offer(
    answers: QuietAnswers, rate_per_s: float, duration_s: float, *, num_connections: int, seed: int
) -> tuple[Report, Report]:
    """Sends requests at random moments, whatever comes back; latencies count from when due.

    A closed loop cannot overload a server: its clients wait, and with them the load.

    Returns:
        The report on all requests, and one on the refused alone, as if a refusal were an answer.
    """
    plan = answers.plan(num_connections, duration_s, rate_per_s=rate_per_s, seed=seed)
    samples = [sample for batch in run_load(plan) for sample in batch]
    refused = [sample._replace(error_code="") for sample in samples if sample.error_code]
    return Report.of(samples), Report.of(refused)


@contextmanager
def under_load(plan: LoadPlan) -> Iterator[list[Sample]]:
    """Makes a load for the time of the block, in a thread; fills the list.

    Of the requests in flight at the end of the block it counts only those that a server left
    unanswered when it closed their connections.
    """
    samples: list[Sample] = []
    is_over = threading.Event()

    def run() -> None:
        with closing(run_load(plan)) as batches:
            is_last = False
            while not is_last:
                is_last = is_over.is_set()  # before a whole batch: what was lost is in it
                samples.extend(next(batches, []))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield samples
        finally:
            is_over.set()
        running.result()


def assert_all_right(report: Report) -> None:
    """Fails if any request was not answered as in a quiet run, or there was none."""
    assert report.num_answered > 0, report
    assert not report.errors, report
