"""`jobs.py submit`: makes a job of each question in the files.

The `message_id` is made of the row, so that a file submitted again asks only the questions that the
collected answers (`--answers`) leave open.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_service.programs.jobs.answers_file import read_names
from qa_service.programs.jobs.base import Broker, Message
from qa_service.programs.jobs.brokers import connected
from qa_service.programs.jobs.jobs_options import SubmitOptions
from qa_service.programs.jobs.questions_file import Row, count_rows, read_rows
from qa_service.progress import progress_bar

_MAX_UNCONFIRMED = 256
"""Enough to fill the connection while confirmations are on their way."""
Progress = Callable[[int], object]


async def main(options: SubmitOptions) -> int:
    """Runs the command; returns its exit code: 1 if a row cannot be read."""
    answered = read_names(options.answers)[0] if options.answers else set()
    total = sum(map(count_rows, options.files))
    reply_to, expiration_s, counts = options.reply_to, options.expiration_s, _Counts()
    queue = options.broker.jobs_queue
    async with connected(options.broker) as broker:
        with progress_bar(desc=queue, total=total, unit="job") as bar:

            def progress(number: int) -> None:
                counts.submitted += number
                bar.update(number)

            rows = _unanswered(options.files, answered, counts, bar.update)
            jobs = (Message(r.body, r.message_id, None, reply_to, expiration_s) for r in rows)
            try:
                await submit(broker, queue, jobs, progress)
            except BaseException:
                print(f"{counts.submitted} jobs submitted before it stopped", file=sys.stderr)
                raise
    print(
        f"{counts.submitted} jobs submitted to {queue}, "
        f"{counts.answered} are answered already"
        + (f", {counts.faulty} cannot be read" if counts.faulty else "")
    )
    return int(counts.faulty > 0)


@dataclass(slots=True)
class _Counts:
    submitted: int = 0
    answered: int = 0
    faulty: int = 0


async def submit(broker: Broker, queue: str, jobs: Iterable[Message], progress: Progress) -> None:
    """Publishes jobs in their order; reports progress as the broker confirms them."""
    room = asyncio.Semaphore(_MAX_UNCONFIRMED)

    async def publish(job: Message) -> None:
        try:
            await broker.publish(queue, job)
            progress(1)
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                await room.acquire()
                group.create_task(publish(job))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _unanswered(
    files: Sequence[Path], answered: set[str], counts: _Counts, progress: Progress
) -> Iterator[Row]:
    """The rows to submit; counts the others."""
    for path in files:
        for row in read_rows(path):
            if row.fault:
                print(f"{path}, {row.fault}", file=sys.stderr)
                counts.faulty += 1
                progress(1)
            elif row.message_id in answered:
                counts.answered += 1
                progress(1)
            else:
                yield row
