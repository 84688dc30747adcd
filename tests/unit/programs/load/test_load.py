"""The load generator's clients, its report, and the questions that ship with the project."""

import itertools
import math
import platform
import select
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import qa_service
from harness.process import GIVE_UP_S
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.installation import PlotError, check_plot
from qa_service.machine import num_cpus
from qa_service.programs.access import Access
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import LoadPlan, Report, Sample, percentile
from qa_service.programs.load.plot import make_figure
from qa_service.programs.load.sweep import COLUMNS, Cell, csv_row, markdown
from tests.scripted_peer import (
    PeerConnection,
    ScriptedPeer,
    answer_after,
    answer_all,
    answer_and_keep,
    answer_to,
    close_at_once,
    error_to,
    say_that_it_closes,
    unknown_to,
)
from tests.support import FakeClock, WatchedClock, present

QUESTIONS = [SquadQuestion(str(n), f"q{n}?", f"text{n} of it", (), ()) for n in range(7)]


ONE_CLIENT = {"num_simultaneous_clients": 1, "num_total_clients": 1}


@pytest.fixture
def use_clock(monkeypatch):
    """Gives the load generator a clock; its sockets are real."""

    def use(clock):
        for module in ("generator", "connection"):
            monkeypatch.setattr(f"qa_service.programs.load.{module}.time", clock)
        return clock

    return use


def samples_of(peer: ScriptedPeer, **numbers) -> list[Sample]:
    plan = LoadPlan(peer.host, peer.port, QUESTIONS, **numbers)
    return [sample for batch in run_load(plan) for sample in batch]


def next_request(peer: PeerConnection, clock: WatchedClock):
    """The peer's next request, for which time passes."""
    while not select.select([peer.sock], [], [], 0)[0]:
        clock.pass_s(0.001)
    return peer.receive()


def played(*scripts, **numbers) -> list[Sample]:
    """The samples of a load on a peer of these scripts."""
    with ScriptedPeer(*scripts) as peer:
        return samples_of(peer, **numbers)


def codes(samples) -> list[str]:
    return [sample.error_code for sample in samples]


class TestClosedLoop:
    def test_asks_in_turn_over_one_connection_a_client(self):
        seen = []
        with ScriptedPeer(answer_and_keep(seen)) as peer:
            samples = samples_of(peer, **ONE_CLIENT, num_request_per_client=9)
            assert peer.connections == 1
        assert [(request["question"], request["text"]) for request in seen] == [
            (f"q{n % 7}?", f"text{n % 7} of it") for n in range(9)
        ]
        assert codes(samples) == [""] * 9
        assert [sample.question_index for sample in samples] == [*range(7), 0, 1]
        assert all(0 < sample.latency_ms < 20_000 for sample in samples)
        assert sorted(samples) == samples

    def test_a_failure_is_a_sample_and_the_next_request_goes_on(self):
        def script(peer):
            peer.send(error_to(peer.receive()["id"], "queue_full"))
            peer.send(unknown_to(peer.receive()))
            peer.send(answer_to(peer.receive(), start=1))
            peer.receive()

        with ScriptedPeer(script, answer_all) as peer:
            samples = samples_of(peer, **ONE_CLIENT, num_request_per_client=5)
            assert peer.connections == 2
        assert codes(samples) == ["queue_full", "", "wrong_span", "connection_lost", ""]

    def test_without_a_server_every_request_fails(self):
        with ScriptedPeer(answer_all) as peer:
            peer.stop_listening()
            samples = samples_of(peer, num_total_clients=7, num_request_per_client=3)
        assert codes(samples) == ["server_unreachable"] * 21

    def test_every_client_has_its_turn_and_its_connection(self):
        seen = []
        clients = {"num_simultaneous_clients": 3, "num_total_clients": 7}
        with ScriptedPeer(answer_and_keep(seen)) as peer:
            samples = samples_of(peer, **clients, num_request_per_client=2)
            assert peer.connections == 7
        assert codes(samples) == [""] * 14
        asked = Counter(request["question"] for request in seen)
        assert asked == {f"q{n}?": 2 for n in range(7)}

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

        clients = {"num_simultaneous_clients": 5, "num_total_clients": 3}
        assert codes(played(script, **clients, num_request_per_client=1)) == [""] * 3

    def test_a_client_gives_up_and_connects_again(self, use_clock):
        clock, has_come_back = use_clock(WatchedClock()), threading.Event()

        def silent(peer):
            peer.receive()
            clock.pass_s(0.25)
            assert peer.receive() is None
            while server.connections < 2:
                clock.pass_s(0.01)
            has_come_back.set()

        def answer(peer):
            assert has_come_back.wait(60)
            answer_all(peer)

        server = ScriptedPeer(silent, answer)
        with server:
            samples = samples_of(server, **ONE_CLIENT, num_request_per_client=2, timeout_s=0.2)
        assert codes(samples) == ["client_timeout", ""]
        assert samples[0].latency_ms == 250

    def test_after_a_close_notice_no_request_is_sent(self):
        with ScriptedPeer(say_that_it_closes) as peer:
            samples = samples_of(peer, **ONE_CLIENT, num_request_per_client=3)
            assert peer.connections == 3
        assert codes(samples) == [""] * 3

    def test_clients_take_several_servers_in_turn(self):
        first, second = ScriptedPeer(answer_all), ScriptedPeer(answer_all)
        with first, second:
            hosts = f"{first.host},{second.host}:{second.port}"
            plan = LoadPlan(hosts, first.port, QUESTIONS, num_total_clients=6)
            assert codes(sample for batch in run_load(plan) for sample in batch) == [""] * 60
            assert (first.connections, second.connections) == (3, 3)

    def test_ends_when_the_time_is_up(self, use_clock):
        """Four replies take all of it; each client may have one more under way then."""
        clock = use_clock(FakeClock())
        began_s = clock.time_s

        def script(peer):
            while (request := peer.receive()) is not None:
                clock.pass_s(0.25)
                peer.send(answer_to(request))

        with ScriptedPeer(script) as peer:
            samples = samples_of(
                peer, num_simultaneous_clients=3, num_total_clients=1, duration_s=1.0
            )
            assert peer.connections == 3
        assert all(began_s <= sample.started_s < began_s + 1.0 for sample in samples)
        assert 4 <= len(samples) <= 6
        assert set(codes(samples)) == {""}

    def test_answers_are_checked_as_the_plan_says(self):
        def check(question, reply):
            return "" if question.question == "q1?" else "not the first"

        samples = played(answer_all, **ONE_CLIENT, num_request_per_client=3, check=check)
        assert codes(samples) == ["not the first", "", "not the first"]

    @pytest.mark.parametrize(("more", "expected"), [([], []), (["again"], ["protocol_error"])])
    def test_clients_that_have_their_answers_stay_until_the_server_closes(self, more, expected):
        all_answered = threading.Event()

        def script(peer):
            request = peer.receive()
            peer.send(answer_to(request))
            assert all_answered.wait(20)
            for _ in more:
                peer.send(answer_to(request))

        numbers = {"num_total_clients": 3, "num_request_per_client": 1}
        samples = played(script, **numbers, on_answered=all_answered.set)
        assert codes(samples) == [""] * 3 + expected * 3


class TestOpenLoop:
    def test_requests_are_sent_at_the_rate_without_waiting_for_replies(self):
        """Nothing is answered before the last request is there."""
        numbers = {"num_total_clients": 20, "num_request_per_client": 10, "rate_per_s": 1000.0}
        with ScriptedPeer(answer_after(200, [])) as peer:
            samples = samples_of(peer, num_simultaneous_clients=2, **numbers)
            assert peer.connections == 2
        assert codes(samples) == [""] * 200
        took_s = max(s.started_s for s in samples) - min(s.started_s for s in samples)
        assert 0.14 < took_s < 0.28, "200 arrivals at 1000/s, within four standard deviations"

    def test_send_times_are_a_poisson_process_fixed_by_the_seed(self):
        def moments(seed: int) -> list[float]:
            samples = played(answer_all, rate_per_s=2000.0, num_request_per_client=5, seed=seed)
            starts_s = sorted(sample.started_s for sample in samples)
            return [later - sooner for sooner, later in itertools.pairwise(starts_s)]

        gaps_s = moments(seed=1)
        assert moments(seed=1) == pytest.approx(gaps_s, abs=1e-9)
        assert moments(seed=2) != pytest.approx(gaps_s, abs=1e-9)
        mean_s, std_s = statistics.fmean(gaps_s), statistics.pstdev(gaps_s)
        assert mean_s == pytest.approx(1 / 2000, rel=0.2)
        assert std_s == pytest.approx(mean_s, rel=0.2), "as of exponential gaps"

    def test_a_stall_counts_in_the_latency_of_requests_due_during_it(self):
        """The server reads nothing for a while; no request is kept back from the account."""
        stall_s = 0.3

        def script(peer):
            request = peer.receive()
            time.sleep(stall_s)  # what is tested is that it takes time
            while request is not None:
                peer.send(answer_to(request))
                request = peer.receive()

        numbers = {"num_total_clients": 10, "num_request_per_client": 10, "rate_per_s": 500.0}
        with ScriptedPeer(script) as peer:
            samples = sorted(samples_of(peer, num_simultaneous_clients=1, **numbers))
        for sample in samples:
            due_in_stall_s = samples[0].started_s + stall_s - sample.started_s
            assert sample.latency_ms >= due_in_stall_s * 1e3

    def test_a_lost_connection_fails_only_its_requests(self):
        on_it = []

        def leaves(peer):
            on_it.extend(peer.receive() for _ in range(5))
            peer.sock.shutdown(socket.SHUT_WR)
            while (request := peer.receive()) is not None:
                on_it.append(request)

        numbers = {"num_total_clients": 1, "num_request_per_client": 50, "rate_per_s": 200.0}
        with ScriptedPeer(leaves, answer_all) as peer:
            samples = samples_of(peer, num_simultaneous_clients=1, **numbers)
            assert peer.connections == (2 if len(on_it) < 50 else 1)
        assert Counter(codes(samples)) == Counter(connection_lost=len(on_it)) + Counter(
            {"": 50 - len(on_it)}
        )

    def test_after_a_close_notice_outstanding_replies_are_awaited(self, use_clock):
        clock = use_clock(WatchedClock())
        has_been_asked = threading.Event()

        def closing(peer):
            first, second = next_request(peer, clock), next_request(peer, clock)
            peer.send(answer_to(first, closing=True))
            clock.pass_s(0)  # the notice is read
            clock.pass_s(0.005)  # and the next request is due
            assert has_been_asked.wait(GIVE_UP_S)
            peer.send(answer_to(second, closing=True))
            assert peer.receive() is None

        def others(peer):
            for _ in range(6):
                request = next_request(peer, clock)
                has_been_asked.set()
                peer.send(answer_to(request))
            assert peer.receive() is None

        numbers = {"num_total_clients": 1, "num_request_per_client": 8, "rate_per_s": 200.0}
        with ScriptedPeer(closing, others) as peer:
            samples = samples_of(peer, num_simultaneous_clients=1, **numbers)
            assert peer.connections == 2
        assert codes(samples) == [""] * 8

    def test_a_timed_out_request_does_not_fail_its_neighbours(self, use_clock):
        clock = use_clock(WatchedClock())

        def script(peer):
            late, held = next_request(peer, clock), next_request(peer, clock)
            for _ in range(38):  # one more is always on its way
                answered, held = held, next_request(peer, clock)
                peer.send(answer_to(answered))
            peer.send(answer_to(late), answer_to(held))
            assert peer.receive() is None

        numbers = {"num_total_clients": 4, "rate_per_s": 500.0, "timeout_s": 0.04}
        with ScriptedPeer(script) as peer:
            samples = sorted(samples_of(peer, num_simultaneous_clients=1, **numbers))
            assert peer.connections == 1
        assert codes(samples) == ["client_timeout"] + [""] * 39

    def test_without_a_server_every_request_fails(self):
        with ScriptedPeer(answer_all) as peer:
            peer.stop_listening()
            samples = samples_of(peer, rate_per_s=500.0, duration_s=0.2)
        assert set(codes(samples)) == {"server_unreachable"}
        assert 50 < len(samples) < 200


class TestAccess:
    TOKEN = Access(token="let me in")

    def test_shows_its_token_before_it_asks(self):
        def script(peer):
            assert peer.receive() == {"type": "auth", "token": "let me in"}
            peer.send({"id": None, "auth": "ok"})
            answer_all(peer)

        for rate_per_s in (None, 500.0):
            samples = played(script, access=self.TOKEN, **ONE_CLIENT, rate_per_s=rate_per_s)
            assert codes(samples) == [""] * 10


class TestTls:
    @pytest.mark.parametrize("speaks", [close_at_once, lambda peer: peer.send(b"no TLS, this")])
    def test_a_peer_without_tls_is_a_failure(self, speaks):
        samples = played(speaks, access=Access(tls=True), **ONE_CLIENT, num_request_per_client=2)
        assert set(codes(samples)) <= {"tls_error", "server_unreachable"}
        assert len(samples) == 2


class TestReport:
    def test_the_report_counts_answered_requests_alone(self):
        samples = [Sample(10.0 + n, n * 10.0) for n in range(1, 101)]
        samples.append(Sample(10.0, 5.0, "queue_full"))
        report = Report.of(samples)
        assert report.num_answered == 100
        assert report.mean_ms == 505.0
        assert math.isclose(report.std_ms, 288.66070047722)
        assert report.percentiles_ms == {50: 500.0, 90: 900.0, 99: 990.0}
        assert report.duration_s == 101.0
        assert math.isclose(report.throughput, 100 / 101)

    def test_the_report_is_printed_in_five_lines(self):
        samples = [Sample(0.0, 10.0), Sample(0.5, 20.0)]
        samples += [Sample(0.1, 1.0, "queue_full")] * 2 + [Sample(0.1, 1.0, "connection_lost")]
        assert str(Report.of(samples)) == (
            "Latency:     15.00 ± 5.00 ms (mean ± std)\n"
            "Percentiles: p50 10.00 ms, p90 20.00 ms, p99 20.00 ms\n"
            "Throughput:  3.8 requests/s\n"
            "Requests:    2 answered in 0.52 s\n"
            "Errors:      3 (connection_lost 1, queue_full 2)"
        )

    def test_the_report_of_no_samples_has_no_numbers(self):
        report = Report.of([])
        assert report.num_failed == 0
        assert report.throughput == 0.0
        assert "nan" in str(report)

    def test_the_report_has_the_load_generators_share_of_the_cpu(self):
        assert "Generator:   " not in str(Report.of([]))
        num_cores = num_cpus()
        words = f"{0.5 / num_cores:.1%} of the CPU time of {num_cores} cores"
        assert f"Generator:   {words}\n" in str(Report.of([], generator_cores=0.5))
        assert "its one core is full" in str(Report.of([], generator_cores=0.95))

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


def cell(num_sessions: int | None, num_clients: int, engine: str = "", **fields) -> Cell:
    """Requests of 10 and 20 ms in a second."""
    plan = LoadPlan("localhost", 9999, QUESTIONS, num_simultaneous_clients=num_clients, **fields)
    samples = [Sample(0.0, 10.0), Sample(0.98, 20.0), Sample(0.5, 1.0, "queue_full")]
    return Cell(num_sessions, plan, Report.of(samples, generator_cores=0.1), engine)


class TestTables:
    CELLS = (cell(1, 1), cell(1, 20), cell(2, 1))

    def test_markdown_of_a_sweep_that_was_cut_short(self):
        lines = markdown(self.CELLS).splitlines()
        assert lines[:5] == [
            "Latency in ms: p50 / p99 (mean ± std)",
            "",
            "| clients |               1 instance |              2 instances |",
            "|--------:|-------------------------:|-------------------------:|",
            "|       1 | 10.0 / 20.0 (15.0 ± 5.0) | 10.0 / 20.0 (15.0 ± 5.0) |",
        ]
        assert "|      20 | 2.0 (1 failed) |                |" in lines
        assert lines[-3].endswith("1000 requests a cell, 7 questions.")
        assert platform.python_version() in lines[-1]

    def test_a_columns_head_names_the_engine_and_its_precision(self):
        cells = (cell(1, 1, "openvino int8"), cell(2, 1, "onnx fp32"))
        heads = markdown(cells).splitlines()[2]
        words = [word.strip() for word in heads.split("|")]
        assert words[2:4] == ["1 instance, openvino int8", "2 instances, onnx fp32"]

    def test_csv_has_every_figure_in_full(self):
        row = csv_row(cell(None, 50, rate_per_s=100.0))
        found = dict(zip(COLUMNS, row, strict=True))
        assert (found["sessions"], found["loop"], found["offered_per_s"]) == (None, "open", 100.0)
        assert (found["answered"], found["failed"]) == (2, 1)
        assert found["errors"] == "queue_full=1"
        assert found["mean_ms"] == 15.0


class TestPlot:
    @pytest.mark.parametrize("rate_per_s", [None, 40.0])
    def test_a_plot_has_two_panels_with_units(self, rate_per_s):
        pytest.importorskip("matplotlib")
        cells = [cell(number, 5, rate_per_s=rate_per_s) for number in (1, 2)]
        latency, throughput = make_figure(cells).axes
        assert latency.get_ylabel() == "latency (ms, logarithmic)"
        assert throughput.get_ylabel() == "throughput (answers per second)"
        load = "offered load (requests per second)" if rate_per_s else "simultaneous clients"
        assert latency.get_xlabel() == throughput.get_xlabel() == load
        words = [text.get_text() for text in present(throughput.get_legend()).get_texts()]
        assert words[-2:] == ["1 instance", "2 instances"]

    def test_a_plot_without_matplotlib_names_the_extra(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(PlotError, match=r"needs matplotlib: .*\[bench\]"):
            check_plot(tmp_path / "plot.png")

    def test_a_plot_of_an_unknown_type_or_in_a_missing_folder_is_refused(self, tmp_path):
        pytest.importorskip("matplotlib")
        check_plot(tmp_path / "plot.svg")
        for path, words in (("plot.gif", "not plot.gif"), ("no/plot.png", "there is no folder")):
            with pytest.raises(PlotError, match=words):
                check_plot(tmp_path / path)


@pytest.mark.parametrize("path", ["qa_service/data/questions.json", "examples/dev.json"])
def test_the_shipped_questions_are_answered_where_they_say(path):
    questions = read_squad(Path(qa_service.__file__).parents[1] / path)
    assert len({question.id for question in questions}) == len(questions)
    for question in questions:
        assert bool(question.answers) != question.is_impossible
        for answer, start in zip(question.answers, question.answer_starts, strict=True):
            assert question.context[start : start + len(answer)] == answer


def test_there_are_questions_to_make_a_load_of():
    questions = read_squad(Path(qa_service.__file__).parent / "data" / "questions.json")
    assert len({question.id for question in questions}) >= 40
    assert len({question.context for question in questions}) >= 12


def test_the_dev_file_asks_of_the_article():
    examples = Path(qa_service.__file__).parents[1] / "examples"
    article = (examples / "article.txt").read_text().strip()
    assert article in {question.context for question in read_squad(examples / "dev.json")}
