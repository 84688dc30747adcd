"""The race of engines: duels that end when they are safe, and the answers of who wins."""

import math
import random

import pytest

from qa_service.autotune.engine_race import (
    MAX_ROUNDS,
    MIN_ANSWERS,
    MIN_ROUNDS,
    Race,
    Record,
    is_faster,
)
from qa_service.autotune.engine_table import EngineTable, Finding
from qa_service.errors import SetupError
from qa_service.wire.messages import Task
from tests.support import present

ROUNDS = [[Task("?", "Tea.")] * 8] * 26


class Candidate:
    """Takes this many milliseconds a question, and a share of that in a batch.

    Every answer of a certain number is another than that of others.
    """

    def __init__(self, ms, *, together=1.0, wrong=0, fails_after=None, noise=0.0, seed=0) -> None:
        self.ms, self.together, self.noise = ms, together, noise
        self.rng = random.Random(seed)
        self.wrong, self.left = wrong, fails_after
        self.num_answers = 0
        self.asked: list[int] = []
        self.is_started = False

    def start(self):
        self.is_started = True

    def stop(self):
        self.is_started = False

    def ask(self, tasks):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise SetupError("its process ended")
        self.asked.append(len(tasks))
        share = 1.0 if len(tasks) == 1 else self.together
        share *= math.exp(self.rng.gauss(0.0, self.noise))
        if self.rng.random() < self.noise / 5:
            share *= 2  # another program takes the core for the while
        spans = []
        for _ in tasks:
            self.num_answers += 1
            spans.append((1, 2) if self.wrong and self.num_answers % self.wrong == 0 else (0, 1))
        return self.ms * len(tasks) * share, spans


def run(*candidates, may_take_reference=True, min_agreement=0.97, seconds_a_step=0.0, **limits):
    """The findings: candidates are called a, b, c ...; each that begins takes so long."""
    said = []
    records = [
        Record(Finding(name, "fp32", is_eligible=bool(number or may_take_reference)), candidate)
        for number, (name, candidate) in enumerate(zip("abcdefghij", candidates, strict=False))
    ]
    race = Race(
        records, ROUNDS, min_agreement, elapsed_s=lambda: len(said) * seconds_a_step,
        say=lambda *words: said.append(words), **limits,
    )  # fmt: skip
    return race.run()


def best(findings, min_agreement=0.97):
    return present(EngineTable("", min_agreement, tuple(findings)).best).engine_type


def test_the_fastest_is_found_and_its_answers_compared():
    slow = Candidate(30.0)
    findings = run(Candidate(20.0), Candidate(10.0, together=0.5, wrong=99), slow)
    first, second, third = findings
    assert (first.ratio, first.num_same, first.num_answers) == (1.0, 208, 208)
    assert (second.alone_ms, second.batched_ms, second.ratio) == (10.0, 5.0, 0.375)
    assert (second.num_same, second.num_answers) == (206, 208)
    assert (third.ratio, third.num_answers) == (1.5, 0)
    assert len(slow.asked) == 1 + 5 * MIN_ROUNDS
    assert best(findings) == "b"


def test_a_losing_engine_is_stopped():
    candidates = [Candidate(ms) for ms in (20.0, 15.0, 10.0, 12.0)]
    assert best(run(*candidates)) == "c"
    assert [one.is_started for one in candidates] == [True, False, True, False]


def test_batches_that_are_no_faster_do_not_count():
    _, second = run(Candidate(20.0), Candidate(10.0, together=4.0))
    assert (second.batched_ms, second.ratio) == (40.0, 0.5)


def test_the_next_is_taken_if_the_fastest_answers_otherwise():
    findings = run(Candidate(20.0), Candidate(10.0), Candidate(5.0, wrong=5))
    assert best(findings) == "b"
    assert findings[2].num_same < findings[2].num_answers < 208  # it was asked no further
    assert best(run(Candidate(20.0), Candidate(5.0, wrong=5))) == "a"


def test_an_engine_no_faster_than_the_reference_gives_no_answers():
    reference = Candidate(20.0)
    findings = run(reference, Candidate(19.5))
    assert (findings[1].num_answers, best(findings)) == (0, "a")
    assert sum(reference.asked) < 208


def test_the_fastest_is_taken_where_the_reference_may_not_be():
    limits = {"may_take_reference": False}
    assert best(run(Candidate(20.0), Candidate(30.0), Candidate(25.0), **limits)) == "c"
    wrong = run(Candidate(20.0), Candidate(30.0, wrong=9), Candidate(25.0, wrong=5), **limits)
    assert best(wrong) == "b"


def test_no_candidate_begins_when_the_time_is_up():
    late = Candidate(1.0)
    findings = run(Candidate(20.0), Candidate(10.0), late, seconds_a_step=5.0, limit_s=5.0)
    assert (best(findings), findings[2].is_measured, late.is_started) == ("b", False, False)


def test_when_the_time_is_up_the_compared_engines_decide():
    findings = run(Candidate(20.0), Candidate(10.0), seconds_a_step=5.0, limit_s=5.0, end_s=8.0)
    assert findings[1].num_answers == MIN_ANSWERS
    assert best(findings) == "b"


def test_an_engine_with_few_differing_answers_is_asked_more_before_the_verdict():
    """Two of the first answers differ by chance, and none after them."""

    class Unlucky(Candidate):
        def ask(self, tasks):
            took_ms, spans = super().ask(tasks)
            if len(tasks) == 8 and self.asked.count(8) == 1:
                spans[:6] = [(1, 2)] * 6
            return took_ms, spans

    late = {"seconds_a_step": 9.0, "limit_s": 5.0, "end_s": 8.0}
    findings = run(Candidate(20.0), Unlucky(10.0), **late)
    assert (findings[1].num_same, findings[1].num_answers) == (194, 200)
    assert best(findings) == "b"


@pytest.mark.parametrize("fails_after", [0, 1, 8])
def test_a_failing_candidate_is_excluded_with_its_reason(fails_after):
    findings = run(Candidate(20.0), Candidate(10.0, fails_after=fails_after), Candidate(15.0))
    assert findings[1].failure == "its process ended"
    assert (best(findings), findings[2].ratio) == ("c", 0.75)


def test_a_winner_that_fails_in_the_next_duel_is_left_out():
    findings = run(Candidate(20.0), Candidate(5.0, fails_after=20), Candidate(15.0))
    assert (best(findings), findings[2].ratio) == ("c", 0.75)


@pytest.mark.parametrize("fails_after", [0, 1, 9])
def test_nothing_can_be_compared_without_the_reference(fails_after):
    with pytest.raises(SetupError, match="a fp32 cannot run: its process ended"):
        run(Candidate(20.0, fails_after=fails_after), Candidate(10.0))


def duels(ratio, noise, number=500):
    """Simulated duels: how often the candidate is taken, and how many rounds that takes."""
    rng = random.Random(1)
    taken = rounds = 0
    for _ in range(number):
        ratios: list[float] = []
        while (verdict := is_faster(ratios)) is None:
            disturbed = 2 ** rng.choice((-1, 1)) if rng.random() < 0.02 else 1.0
            ratios.append(ratio * disturbed * math.exp(rng.gauss(0.0, noise)))
        taken += verdict
        rounds += len(ratios)
    return taken / number, rounds / number


@pytest.mark.parametrize(
    ("ratio", "noise", "wrong", "rounds"),
    [(0.4, 0.05, 0.0, 3.2), (0.8, 0.05, 0.0, 4), (1.3, 0.05, 0.0, 4), (0.9, 0.05, 0.02, 5),
     (1.05, 0.05, 0.02, 5), (0.8, 0.1, 0.01, 5), (1.1, 0.1, 0.02, 6)],
)  # fmt: skip
def test_wrong_decisions_are_rare_and_rounds_few(ratio, noise, wrong, rounds):
    taken, num_rounds = duels(ratio, noise)
    print(f"{ratio} with noise of {noise}: taken {taken:.1%}, {num_rounds:.1f} rounds")
    assert abs(taken - (ratio < 1)) <= wrong
    assert num_rounds <= rounds


def test_a_duel_of_equals_ends():
    assert duels(0.975, 0.2)[1] <= MAX_ROUNDS


def test_of_seven_noisy_engines_one_of_the_fastest_is_taken():
    """As fast as the processor suggests, or in any other order."""
    shares = (1.0, 0.4, 0.46, 0.47, 0.6, 0.85, 0.7)
    wrong, rounds = 0, 0.0
    for seed in range(200):
        rng = random.Random(seed)
        order = [1.0, *(shares[1:] if seed % 2 else rng.sample(shares[1:], 6))]
        candidates = [Candidate(20 * share, noise=0.1, seed=rng.random()) for share in order]
        findings = run(*candidates)
        taken = order["abcdefg".index(best(findings))]
        wrong += taken > 1.05 * min(order)
        rounds += sum(candidate.asked.count(1) for candidate in candidates) / 4
    print(f"{wrong} of 200 wrong by over 5 %; {rounds / 200:.0f} rounds of one candidate")
    assert wrong <= 4
    assert rounds / 200 <= 60
