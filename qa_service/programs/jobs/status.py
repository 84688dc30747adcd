"""`jobs.py status`: the jobs in each queue, how fast their number changes, and the time left."""

from __future__ import annotations

import asyncio
import datetime

from qa_service.programs.jobs.base import Broker
from qa_service.programs.jobs.brokers import connected
from qa_service.programs.jobs.jobs_options import BrokerOptions, StatusOptions


async def main(options: StatusOptions) -> int:
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
