"""`jobs.py collect`: moves answers from the results queue into a file, one for each job.

An answer leaves the queue when it is on the disk. A restart may cause a second answer to a job,
which is recognised by its `message_id` and dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from qa_service.programs.jobs.answers_file import AnswersFile
from qa_service.programs.jobs.base import Broker
from qa_service.programs.jobs.brokers import connected
from qa_service.programs.jobs.job import Job
from qa_service.programs.jobs.jobs_options import CollectOptions
from qa_service.progress import progress_bar

_PREFETCH = 1000
"""Answers that one write to the disk may have."""
_IDLE_S = 0.5
"""The interval at which an empty queue is looked at."""


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


async def main(options: CollectOptions) -> int:
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
