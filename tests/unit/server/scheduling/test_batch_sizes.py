"""Batches by the queue against always one and always eight: requests at random moments, simulated.

The scheduler is the real one; two instances take what their cost table says, in milliseconds.
"""

import math
import random

import pytest

from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from tests.unit.calls import make_ticket

NUM_INSTANCES = 2
NUM_REQUESTS = 1000
LENGTHS = (80, 110, 150, 200, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64)
GAINS = {
    "a loss": lambda size: 10 * size**1.1,
    "no gain": lambda size: 10 * size,
    "some gain": lambda size: 3 + 7 * size,
    "much gain": lambda size: 7 + 3 * size,
    "nearly free": lambda size: 10 + 0.3 * size,
}
"""Milliseconds of a batch of 100 tokens."""


def costs_of(gain) -> CostTable:
    rows = (tuple(gain(size) * length / 100 for size in SIZES) for length in (16, 384))
    return CostTable((16, 384), SIZES, tuple(rows))


def latencies_ms(rule, costs, rate_per_ms):
    """Of every request, ascending."""
    moments = random.Random(0)
    now_ms, arrivals = 0.0, []
    for number in range(NUM_REQUESTS):
        now_ms += moments.expovariate(rate_per_ms)
        tokens = moments.choice(LENGTHS)
        cost = costs.cost_ms(1, tokens)
        arrivals.append(make_ticket(now_ms, tokens=tokens, flow=str(number % 16), cost=cost))
    scheduler = Scheduler(QueueOptions(max_queue_size=NUM_REQUESTS))
    free_at_ms = [0.0] * NUM_INSTANCES
    found, now_ms, arrived = [], 0.0, 0
    while len(found) < NUM_REQUESTS:
        while arrived < NUM_REQUESTS and arrivals[arrived].arrived_s <= now_ms:
            scheduler.add(arrivals[arrived])
            arrived += 1
        free = min(range(NUM_INSTANCES), key=free_at_ms.__getitem__)
        if len(scheduler) and free_at_ms[free] <= now_ms:
            batch = scheduler.next_batch(now_ms, rule, num_instances=NUM_INSTANCES)
            free_at_ms[free] = now_ms + costs.cost_ms(len(batch), max(p.tokens for p in batch))
            found += [free_at_ms[free] - ticket.arrived_s for ticket in batch]
            continue
        next_ms = arrivals[arrived].arrived_s if arrived < NUM_REQUESTS else math.inf
        now_ms = min([next_ms, *(end_ms for end_ms in free_at_ms if end_ms > now_ms)])
    return sorted(found)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5])
@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
def test_latency_is_at_most_a_tenth_above_the_better_fixed_batch_size(gain, share):
    costs = costs_of(gain)
    mean_tokens = sum(LENGTHS) // len(LENGTHS)
    best_ms = min(costs.cost_ms(size, mean_tokens) / size for size in (1, 8))
    rate_per_ms = share * NUM_INSTANCES / best_ms
    ours, one, eight = (
        latencies_ms(rule, costs, rate_per_ms)
        for rule in (BatchRule(64, 16384, costs=costs), BatchRule(1), BatchRule(8, 16384))
    )
    for percent in (50, 99):
        at = NUM_REQUESTS * percent // 100
        assert ours[at] <= 1.1 * min(one[at], eight[at])
