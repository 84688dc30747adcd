"""`jobs.py submit`: the questions of files, each a job with a name that is always the same.

The name (`message_id`) is made of the row, so that a file that is submitted again asks again only
what the answers collected so far leave open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from qa_service.broker.answers_file import AnswersFile
from qa_service.broker.base import Broker, Message
from qa_service.broker.flags import broker_url, names_from
from qa_service.broker.questions_file import count_rows, read_rows
from qa_service.broker.rabbitmq import RabbitMq

_MAX_UNCONFIRMED = 256
Progress = Callable[[int], object]


async def main(flags: dict[str, Any]) -> int:
    """Runs the command; returns its exit code."""
    names = names_from(flags)
    answered = AnswersFile.names_in(flags["answers"]) if flags["answers"] else set()
    broker = RabbitMq(broker_url(flags), names)
    total = sum(map(count_rows, flags["files"]))
    expires_in_ms = round(flags["expiration_s"] * 1000) if flags["expiration_s"] else None
    with tqdm(desc=names.jobs, total=total, unit="job", disable=None) as bar:
        jobs = _jobs(flags["files"], flags["reply_to"], expires_in_ms)
        await broker.open()
        try:
            count = await submit(
                broker, names.jobs, _unanswered(jobs, answered, bar.update), bar.update
            )
        finally:
            await broker.close()
    print(f"{count} jobs submitted to {names.jobs}, {total - count} are answered already")
    return 0


async def submit(broker: Broker, queue: str, jobs: Iterable[Message], progress: Progress) -> int:
    """Publishes jobs in their order, some hundred ahead of the broker's confirmations.

    Returns:
        How many; all are confirmed.

    Raises:
        BrokerError: The connection was lost; as many as were reported to `progress` are confirmed.
    """
    room = asyncio.Semaphore(_MAX_UNCONFIRMED)
    count = 0

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
                count += 1
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return count


def _jobs(files: list[Path], reply_to: str | None, expires_in_ms: int | None) -> Iterator[Message]:
    for path in files:
        for row in read_rows(path):
            yield Message(row.body, row.message_id, reply_to=reply_to, expires_in_ms=expires_in_ms)


def _unanswered(
    jobs: Iterable[Message], answered: set[str], progress: Progress
) -> Iterator[Message]:
    for job in jobs:
        if job.message_id in answered:
            progress(1)
        else:
            yield job
