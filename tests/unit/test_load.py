"""The load generator's clients, its report, and the questions that ship with the project."""

import math
import multiprocessing
from pathlib import Path

import pytest

import qa_service
from qa_service.load.generator import LoadError, LoadPlan, Sample, play_client, run_load
from qa_service.load.report import Report, percentile
from qa_service.squad import SquadQuestion, read_squad
from tests.scripted_peer import (
    ScriptedPeer,
    answer_all,
    answer_to,
    close_at_once,
    error_to,
    unknown_to,
)

QUESTIONS = [SquadQuestion(str(n), f"q{n}?", f"text{n} of it", (), ()) for n in range(7)]


def plan_for(peer: ScriptedPeer, **numbers) -> LoadPlan:
    return LoadPlan(peer.host, peer.port, QUESTIONS, **numbers)


def codes(samples) -> list[str]:
    return [sample.error_code for sample in samples]


class TestPlayClient:
    def test_asks_its_own_questions_in_turn(self):
        seen = []

        def script(peer):
            while (request := peer.receive()) is not None:
                seen.append((request["question"], request["text"]))
                peer.send(answer_to(request))

        with ScriptedPeer(script) as peer:
            samples = list(play_client(plan_for(peer, num_request_per_client=4), client=1))
            assert peer.connections == 1
        assert seen == [(f"q{n}?", f"text{n} of it") for n in (4, 5, 6, 0)]
        assert codes(samples) == [""] * 4
        assert all(0 < sample.latency_ms < 20_000 for sample in samples)
        assert sorted(samples) == samples

    def test_a_failure_is_a_sample_and_the_next_request_goes_on(self):
        def script(peer):
            peer.send(error_to(peer.receive()["id"], "queue_full"))
            peer.send(unknown_to(peer.receive()))
            peer.send(answer_to(peer.receive(), start=1))

        with ScriptedPeer(script, close_at_once) as peer:
            samples = list(play_client(plan_for(peer, num_request_per_client=4), client=0))
        assert codes(samples) == ["queue_full", "", "wrong_span", "connection_lost"]

    def test_without_a_server_every_request_fails(self):
        with ScriptedPeer(answer_all) as peer:
            peer.stop_listening()
            samples = list(play_client(plan_for(peer, num_request_per_client=3), client=0))
        assert codes(samples) == ["server_unreachable"] * 3


class TestRunLoad:
    def test_every_client_has_its_turn_and_its_connection(self):
        seen = []

        def script(peer):
            while (request := peer.receive()) is not None:
                seen.append(request["question"])
                peer.send(answer_to(request))

        with ScriptedPeer(script) as peer:
            plan = plan_for(
                peer, num_simultaneous_clients=3, num_total_clients=7, num_request_per_client=2
            )
            samples = [sample for batch in run_load(plan) for sample in batch]
            assert peer.connections == 7
        assert codes(samples) == [""] * plan.num_requests
        assert sorted(seen) == sorted([f"q{n}?" for n in range(7)] * 2)

    def test_clients_are_simultaneous(self):
        """No client is answered before all of them are there."""
        waiting = []

        def script(peer):
            request = peer.receive()
            waiting.append((peer, request))
            if len(waiting) == 3:
                for other, its_request in waiting:
                    other.send(answer_to(its_request))
            assert peer.receive() is None

        with ScriptedPeer(script) as peer:
            plan = plan_for(
                peer, num_simultaneous_clients=5, num_total_clients=3, num_request_per_client=1
            )
            samples = [sample for batch in run_load(plan) for sample in batch]
        assert codes(samples) == [""] * 3

    def test_a_client_process_that_dies_is_told(self):
        def script(peer):
            peer.receive()
            for process in multiprocessing.active_children():
                process.kill()

        with (
            ScriptedPeer(script) as peer,
            pytest.raises(LoadError, match=r"died \(exit code -9\)"),
        ):
            list(run_load(plan_for(peer, num_simultaneous_clients=2)))


class TestReport:
    def test_is_over_requests(self):
        samples = [Sample(10.0 + n, n * 10.0) for n in range(1, 101)]
        samples.append(Sample(10.0, 5.0, "queue_full"))
        report = Report.of(samples)
        assert report.num_answered == 100
        assert report.mean_ms == 505.0
        assert math.isclose(report.std_ms, 288.66070047722)
        assert report.percentiles_ms == {50: 500.0, 90: 900.0, 99: 990.0}
        assert report.duration_s == 101.0
        assert math.isclose(report.throughput, 100 / 101)

    def test_reads_well(self):
        samples = [Sample(0.0, 10.0), Sample(0.5, 20.0)]
        samples += [Sample(0.1, 1.0, "queue_full")] * 2 + [Sample(0.1, 1.0, "connection_lost")]
        assert str(Report.of(samples)) == (
            "Latency:     15.00 ± 5.00 ms (mean ± std)\n"
            "Percentiles: p50 10.00 ms, p90 20.00 ms, p99 20.00 ms\n"
            "Throughput:  3.8 requests/s\n"
            "Requests:    2 answered in 0.52 s\n"
            "Errors:      3 (connection_lost 1, queue_full 2)"
        )

    def test_of_nothing(self):
        report = Report.of([])
        assert report.num_failed == 0
        assert report.throughput == 0.0
        assert "nan" in str(report)

    @pytest.mark.parametrize(
        ("size", "percent", "expected"),
        [
            (1, 50, 1),
            (1, 99, 1),
            (2, 50, 1),
            (2, 51, 2),
            (100, 99, 99),
            (1000, 99, 990),
            (3, 100, 3),
        ],
    )
    def test_percentile_is_the_nearest_rank(self, size, percent, expected):
        assert percentile(range(1, size + 1), percent) == expected


def test_the_shipped_questions_are_answered_where_they_say():
    questions = read_squad(Path(qa_service.__file__).parent / "data" / "questions.json")
    assert len({question.id for question in questions}) == len(questions) >= 40
    assert len({question.context for question in questions}) >= 12
    for question in questions:
        assert question.answers
        for answer, start in zip(question.answers, question.answer_starts, strict=True):
            assert question.context[start : start + len(answer)] == answer
