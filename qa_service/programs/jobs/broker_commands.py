"""The commands of `jobs.py` that put jobs into a broker's queues and take answers out.

The `message_id` of a job is made of its row, so that a file submitted again asks only the questions
that the collected answers (`--answers`) leave open. An answer leaves its queue when it is on the
disk. A restart may cause a second answer to a job, which is recognised by its `message_id` and
dropped.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from qa_service.client import QaServerError
from qa_service.programs.jobs.answers_file import AnswersFile, read_names
from qa_service.programs.jobs.brokers import Broker, Message, connected
from qa_service.programs.jobs.job import Job, parse_request
from qa_service.programs.jobs.jobs_options import (
    BrokerOptions,
    CollectOptions,
    DeadOptions,
    StatusOptions,
    SubmitOptions,
)
from qa_service.programs.jobs.questions_file import Row, count_rows, read_rows
from qa_service.progress import progress_bar

_MAX_UNCONFIRMED = 256
"""Enough to fill the connection while confirmations are on their way."""
Progress = Callable[[int], object]
_PREFETCH = 1000
"""Answers that one write to the disk may have."""
_IDLE_S = 0.5
"""The interval at which an empty queue is looked at."""
_QUESTION_CHARS = 60
"""So that a job takes one line of a terminal."""


async def submit_main(options: SubmitOptions) -> int:
    """Runs the command; returns its exit code: 1 if a row cannot be read."""
    answered = read_names(options.answers)[0] if options.answers else set()
    total = sum(map(count_rows, options.files))
    reply_to, expiration_s = options.reply_to, options.expiration_s
    queue, submitted, others = options.broker.jobs_queue, 0, Counter[str]()
    async with connected(options.broker) as broker:
        with progress_bar(desc=queue, total=total, unit="job") as bar:

            def progress(number: int) -> None:
                nonlocal submitted
                submitted += number
                bar.update(number)

            rows = _unanswered(options.files, answered, others, bar.update)
            jobs = (Message(r.body, r.message_id, None, reply_to, expiration_s) for r in rows)
            try:
                await submit(broker, queue, jobs, progress)
            except BaseException:
                print(f"{submitted} jobs submitted before it stopped", file=sys.stderr)
                raise
    faulty = others["faulty"]
    print(
        f"{submitted} jobs submitted to {queue}, {others['answered']} are answered already"
        + (f", {faulty} cannot be read" if faulty else "")
    )
    return int(faulty > 0)


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
    files: Sequence[Path], answered: set[str], others: Counter[str], progress: Progress
) -> Iterator[Row]:
    """The rows to submit; counts the others, `faulty` and `answered`."""
    for path in files:
        for row in read_rows(path):
            if row.fault:
                print(f"{path}, {row.fault}", file=sys.stderr)
                others["faulty"] += 1
                progress(1)
            elif row.message_id in answered:
                others["answered"] += 1
                progress(1)
            else:
                yield row


@dataclass(slots=True)
class Collector:
    """Collects until the file has `count` answers; without a count, until the queue is empty.

    Attributes:
        follow: Whether to wait for more answers when the queue is empty.
        num_dropped: Second answers to one job, and bodies that are no answer.
    """

    broker: Broker
    file: AnswersFile
    count: int | None
    follow: bool
    progress: Callable[[int], object]
    num_new: int = 0
    num_dropped: int = 0

    async def run(self, queue: str) -> None:
        """Raises `BrokerError` when the connection is lost; written answers stay."""
        arrived: asyncio.Queue[Job] = asyncio.Queue()
        prefetch = max(1, min(_PREFETCH, self._num_wanted()))
        await self.broker.consume(queue, arrived.put_nowait, prefetch)
        lost = asyncio.ensure_future(self.broker.lost())
        try:
            while self._num_wanted() > 0:
                jobs = await _next_batch(arrived)
                if jobs:
                    await self._keep(jobs)
                elif lost.done():
                    lost.result()  # raises
                elif self.follow or self.count is not None:
                    continue
                elif (await self.broker.count(queue))[0] == 0:
                    return
        finally:
            lost.cancel()

    def _num_wanted(self) -> int:
        """How many answers the file still lacks; without a count, `_PREFETCH`."""
        return _PREFETCH if self.count is None else self.count - len(self.file.names)

    async def _keep(self, jobs: list[Job]) -> None:
        """Writes answers until there are enough, and gives back the rest."""
        taken = 0
        for job in jobs:
            if self._num_wanted() <= 0:
                break
            is_new = self.file.add(job.message_id or job.correlation_id or "", job.body)
            self.num_new += is_new
            self.num_dropped += not is_new
            self.progress(is_new)
            taken += 1
        self.file.sync()
        for job in jobs[:taken]:
            await self.broker.acknowledge(job)
        for job in jobs[taken:]:
            await self.broker.give_back(job)


async def _next_batch(arrived: asyncio.Queue[Job]) -> list[Job]:
    """The jobs that have arrived; none if `_IDLE_S` pass without one."""
    try:
        jobs = [await asyncio.wait_for(arrived.get(), _IDLE_S)]
    except TimeoutError:
        return []
    while not arrived.empty():
        jobs.append(arrived.get_nowait())
    return jobs


async def collect_main(options: CollectOptions) -> int:
    total, queue = options.count, options.broker.results_queue
    with closing(AnswersFile(options.output)) as file:
        async with connected(options.broker) as broker:
            had = len(file.names)
            with progress_bar(desc=queue, total=total, initial=had, unit="answer") as bar:
                collector = Collector(broker, file, total, options.follow, bar.update)
                await collector.run(queue)
    print(
        f"{collector.num_new} answers added, {collector.num_dropped} dropped as duplicates, "
        f"{len(file.names)} in {options.output}"
    )
    return 0


async def dead_main(options: DeadOptions) -> int:
    """Lists, retries or drops the jobs that are wanted, or all jobs if none are named.

    Returns the exit code: 1 if a named job is not in the queue.
    """
    wanted, action, queues = set(options.message_id), options.action, options.broker
    async with connected(queues) as broker:
        # All are taken out first: a retried job may fail and come back before the last is read.
        jobs = [job async for job in broker.drain(queues.dead_queue)]
        found = [job for job in jobs if not wanted or job.message_id in wanted]
        for job in found:
            print(_line(job))
            if action == "retry":
                await broker.publish(queues.jobs_queue, Message.of(job, {}))
            if action != "list":
                await broker.acknowledge(job)
        for job in jobs:
            if action == "list" or (wanted and job.message_id not in wanted):
                await broker.give_back(job)
        words = {"list": "in", "retry": "put back from", "drop": "dropped from"}
        print(f"{len(found)} jobs {words[action]} {queues.dead_queue}")
    missing = wanted - {job.message_id for job in found}
    for message_id in sorted(missing):
        print(f"{message_id} is not in {queues.dead_queue}")
    return int(bool(missing))


def _line(job: Job) -> str:
    try:
        question = parse_request(job.body)["question"]
    except QaServerError:
        question = repr(job.body[:_QUESTION_CHARS])
    if len(question) > _QUESTION_CHARS:
        question = question[: _QUESTION_CHARS - 1] + "…"
    return f"{job.message_id}  {job.reason}  {question!r}"


async def status_main(options: StatusOptions) -> int:
    queues = options.broker
    async with connected(queues) as broker:
        before = await _counts(broker, queues)
        await asyncio.sleep(options.interval_s)
        after = await _counts(broker, queues)
    print(report(queues, before, after, options.interval_s))
    return 0


async def _counts(broker: Broker, queues: BrokerOptions) -> dict[str, tuple[int, int]]:
    retry = [queue for queue, _ in queues.retry_queues()]
    names = [queues.jobs_queue, *retry, queues.results_queue, queues.dead_queue]
    return {name: await broker.count(name) for name in names}


def report(
    queues: BrokerOptions,
    before: dict[str, tuple[int, int]],
    after: dict[str, tuple[int, int]],
    interval_s: float,
) -> str:
    """A line for each queue, with its messages and consumers, and the time left."""
    lines = [f"{'queue':24}{'waiting':>10}{'change':>12}{'consumers':>11}"]
    for queue, (messages, consumers) in after.items():
        rate = (messages - before[queue][0]) / interval_s
        lines.append(f"{queue:24}{messages:>10}{rate:>+10.1f}/s{consumers:>11}")
    messages, consumers = after[queues.jobs_queue]
    rate = (before[queues.jobs_queue][0] - messages) / interval_s
    if not consumers:
        lines.append("no gateway takes jobs")
    elif not messages:
        lines.append("no job waits")
    elif rate <= 0:
        lines.append("jobs come as fast as they are done, or faster")
    else:
        left = datetime.timedelta(seconds=round(messages / rate))
        lines.append(f"{rate:.1f} jobs/s fewer; none waits in {left}")
    return "\n".join(lines)
