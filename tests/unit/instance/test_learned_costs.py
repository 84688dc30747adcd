"""Costs that follow what batches take, on a simulated machine whose true costs are known."""

import math
import random
from functools import cache

import pytest

from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.instance.learned_costs import TABLE_EVERY, TRIAL_EVERY, LearnedCosts
from qa_service.instance.reader.measuring import estimate_costs

LENGTHS = (16, 32, 64, 128, 256, 384)
ASKED = (60, 100, 150, 180, 240, 300)
NUM_WAITING = 8
CORE, GPU = ((1, 2), -0.1), ((1, 2, 4, 8, 16), 0.8)
"""Sizes that a start measures, and what each row after the first saves."""


def ms_of(saving, rows, tokens):
    return (0.5 + 0.09 * tokens) * (1 + (rows - 1) * (1 - saving))


def table_of(machine, error=lambda rows, tokens: 1.0):
    sizes, saving = machine
    rows = [
        tuple(ms_of(saving, rows, tokens) * error(rows, tokens) for rows in sizes)
        for tokens in LENGTHS
    ]
    return CostTable(LENGTHS, sizes, tuple(rows), "simulated")


def rule_of(table):
    return BatchRule(table.batch_sizes[-1], 16384, 1e9, table)


def size_of(rule, tokens):
    """How many rows of a length the rule puts together."""
    rows = 1
    while rule.admits(rows, tokens, tokens, NUM_WAITING):
        rows += 1
    return rows


class Machine:
    """Requests wait all the time; runs differ by a tenth, and one in fifty takes 20 times longer.

    Attributes:
        wrong: Of each run, whether another size would have been right.
        lost: By what share all of it took longer than with the right sizes.
    """

    def __init__(self, machine, error=lambda rows, tokens: 1.0, seed=0):
        self.saving, self.rng = machine[1], random.Random(seed)
        right = rule_of(table_of(machine))
        self.right_size = cache(lambda tokens: size_of(right, tokens))
        self.learned = LearnedCosts(table_of(machine, error))
        self.slowness = 1.0
        self.reset()

    def reset(self):
        self.wrong, self.took_ms, self.due_ms = [], 0.0, 0.0

    def run(self, num_runs, asked=ASKED):
        self.reset()
        for _ in range(num_runs):
            tokens = int(self.rng.choice(asked) * self.rng.uniform(0.8, 1.2))
            rows = size_of(rule_of(self.learned.table), tokens)
            right = self.right_size(tokens)
            self.wrong.append(rows != right)
            took_ms = ms_of(self.saving, rows, tokens)
            self.took_ms += took_ms
            self.due_ms += rows * ms_of(self.saving, right, tokens) / right
            noise = math.exp(self.rng.gauss(0.0, 0.1)) * (20 if self.rng.random() < 0.02 else 1)
            self.learned.observe(rows, tokens, took_ms * self.slowness * noise)
        return self

    @property
    def lost(self):
        return self.took_ms / self.due_ms - 1

    def expected_ms(self, rows, tokens):
        return self.learned.table.cost_ms(rows, tokens) * self.learned.table.pace


ERRORS = {
    "right": lambda rows, tokens: 1.0,
    "all twice": lambda rows, tokens: 2.0,
    "all half": lambda rows, tokens: 0.5,
    "batches half": lambda rows, tokens: 0.5 if rows > 1 else 1.0,
    "batches twice": lambda rows, tokens: 2.0 if rows > 1 else 1.0,
    "alone half": lambda rows, tokens: 0.5 if rows == 1 else 1.0,
    "alone twice": lambda rows, tokens: 2.0 if rows == 1 else 1.0,
    "short batches half": lambda rows, tokens: 0.5 if rows > 1 and tokens <= 128 else 1.0,
    "long batches twice": lambda rows, tokens: 2.0 if rows > 1 and tokens >= 128 else 1.0,
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("machine", [CORE, GPU], ids=["core", "gpu"])
def test_costs_wrong_by_a_factor_of_two_are_corrected_by_runs(machine, error):
    simulated = Machine(machine, ERRORS[error]).run(1000).run(2000)
    print(f"{error}: {sum(simulated.wrong)} of 2000 runs otherwise, {simulated.lost:.2%} lost")
    assert sum(simulated.wrong) <= 0.1 * 2000
    assert simulated.lost <= 0.01
    size = simulated.right_size(180)
    for tokens in (60, 180, 384):
        ratio = simulated.expected_ms(size, tokens) / ms_of(machine[1], size, tokens)
        assert ratio == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("saving", [0.0, -0.1, 0.1])
def test_an_estimate_of_a_core_loses_little_from_its_first_run_on(saving):
    """As on a CPU at its first start; the runs are those of known answers."""
    machine = ((1, 2, 4, 8, 16), saving)
    simulated = Machine(machine)
    shapes = [(1, 40), (1, 384), (1, 78), (1, 30), (9, 28)]
    took = [(*shape, ms_of(saving, *shape)) for shape in shapes]
    estimate = estimate_costs(took, LENGTHS[-1], rule_of(table_of(machine)), "simulated")
    simulated.learned = LearnedCosts(estimate)
    simulated.run(500)
    print(f"{simulated.lost:.2%} lost")
    assert simulated.lost <= 0.04


def test_a_learned_cost_is_tried_again_seldom():
    simulated = Machine(CORE).run(1000).run(1000)
    assert sum(simulated.wrong) <= 3 * 1000 / TRIAL_EVERY


def test_a_single_slow_run_does_not_change_learned_costs():
    simulated = Machine(CORE).run(1000)
    before_ms = simulated.expected_ms(1, 180)
    for rows in (1, 2):
        simulated.learned.observe(rows, 180, 100 * ms_of(CORE[1], rows, 180))
    for _ in range(TABLE_EVERY):
        simulated.learned.observe(1, 180, before_ms)
    assert simulated.expected_ms(1, 180) == pytest.approx(before_ms, rel=0.01)


def test_a_slower_machine_raises_the_cost_of_sizes_that_never_run():
    simulated = Machine(CORE).run(1000, asked=[180])
    simulated.slowness = 2.0
    simulated.run(300, asked=[180])
    for tokens in (16, 60, 180, 384):
        for rows in (1, 2):
            ratio = simulated.expected_ms(rows, tokens) / ms_of(CORE[1], rows, tokens)
            assert ratio == pytest.approx(2.0, rel=0.25), (rows, tokens)
    table = simulated.learned.table
    assert table.pace == pytest.approx(2.0, rel=0.2)
    assert table.cost_ms(1, 180) == pytest.approx(ms_of(CORE[1], 1, 180), rel=0.2)


@pytest.mark.parametrize(("lengths", "turn"), [(LENGTHS, 384), ((16, 512, 4096), 512)])
def test_the_minimum_cost_of_a_turn_never_moves(lengths, turn):
    start = CostTable(lengths, (1, 2), tuple((tokens / 10, tokens / 6) for tokens in lengths))
    learned = LearnedCosts(start)
    for _ in range(200):
        learned.observe(1, 20, 10 * start.cost_ms(1, 20))
    assert learned.table.cost_ms(1, 20) > 1.2 * start.cost_ms(1, 20)
    assert learned.table.cost_ms(1, turn) == pytest.approx(turn / 10)


@pytest.mark.parametrize("shape", [((100,), (1,), ((40.0,),)), ((16, 400), (1, 64), ((1, 9),) * 2)])
def test_any_table_can_be_learned_from(shape):
    learned = LearnedCosts(CostTable(*shape))
    for _ in range(200):
        learned.observe(1, 1, 20.0)
        learned.observe(100, 1000, 0.0)
    assert learned.table.cost_ms(1, 16) * learned.table.pace == pytest.approx(20.0, rel=0.05)
