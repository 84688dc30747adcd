"""`jobs.py dead list|retry|drop`: the jobs that failed, each with its reason."""

from __future__ import annotations

from qa_service.client import QaServerError
from qa_service.programs.jobs.base import Message
from qa_service.programs.jobs.brokers import connected
from qa_service.programs.jobs.job import Job, parse_request
from qa_service.programs.jobs.jobs_options import DeadOptions

_QUESTION_CHARS = 60
"""So that a job takes one line of a terminal."""


async def main(options: DeadOptions) -> int:
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
        question = parse_request(job.body).fields["question"]
    except QaServerError:
        question = repr(job.body[:_QUESTION_CHARS])
    if len(question) > _QUESTION_CHARS:
        question = question[: _QUESTION_CHARS - 1] + "…"
    return f"{job.message_id}  {job.reason}  {question!r}"
