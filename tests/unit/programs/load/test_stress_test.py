"""stress_test.py as a user runs it, against a scripted peer."""

import csv
import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from harness.server import ROOT
from qa_service.programs.load.main import main
from tests.programs import run, run_here, run_python
from tests.scripted_peer import ScriptedPeer, answer_all, answer_and_keep, answer_to, error_to
from tests.support import skip_without
from tests.terminal import Terminal

PROGRAM = [sys.executable, str(ROOT / "stress_test.py")]
run_program = partial(run_python, "stress_test.py")


def flags(peer: ScriptedPeer, **numbers: object) -> list[str]:
    given = {"host": peer.host, "port": peer.port} | numbers
    return [f"--{name}={value}" for name, value in given.items()]


def questions_file(folder: Path, number: int) -> Path:
    qas = [{"id": n, "question": f"q{n}"} for n in range(number)]
    file = folder / "questions.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": "C.", "qas": qas}]}]}))
    return file


def questions_of(requests: list[dict]) -> list[dict]:
    """What was asked, but for which models there are."""
    return [request for request in requests if "question" in request]


def assert_one_clear_line(done: subprocess.CompletedProcess[str], words: str = "") -> None:
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("Error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_defaults_are_the_prototypes_and_the_report_counts_every_request():
    with ScriptedPeer(answer_all) as peer:
        done = run_program(*flags(peer))
        assert peer.connections == 3 + 100, "is anybody there; its figures, before and after"
    assert done.returncode == 0
    assert "Requests:    1000 answered in " in done.stdout
    assert done.stdout.endswith("Errors:      0\n")
    assert done.stderr == "", "no bar where nobody watches"


def test_a_terminal_shows_progress():
    with ScriptedPeer(answer_all) as peer, Terminal([*PROGRAM, *flags(peer)]) as terminal:
        terminal.expect("1000/1000")
        assert terminal.wait() == 0


def test_failures_are_counted_by_code():
    def script(peer):
        while (request := peer.receive()) is not None:
            refused = request["id"] % 3 == 2
            peer.send(error_to(request["id"]) if refused else answer_to(request))

    with ScriptedPeer(script) as peer:
        done = run_program(*flags(peer, num_total_clients=4, num_request_per_client=3))
    assert done.returncode == 1
    assert "Requests:    8 answered" in done.stdout
    assert done.stdout.endswith("Errors:      4 (queue_full 4)\n")


def test_asks_the_questions_of_a_file(tmp_path):
    seen = []
    file = questions_file(tmp_path, 3)
    with ScriptedPeer(answer_and_keep(seen)) as peer:
        done = run_program(*flags(peer, questions_file=file, num_total_clients=2))
    assert done.returncode == 0
    asked = {(each["question"], each["text"]) for each in questions_of(seen)}
    assert asked == {(f"q{number}", "C.") for number in range(3)}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"data": []}'])
def test_a_file_without_questions_is_one_clear_line(tmp_path, content):
    file = tmp_path / "questions.json"
    if content is not None:
        file.write_text(content)
    assert_one_clear_line(run_here(main, "--questions_file", str(file)))


def test_more_clients_than_descriptors_are_one_clear_line():
    with ScriptedPeer(answer_all) as peer:
        words = [*PROGRAM, *flags(peer, num_simultaneous_clients=100)]
        limited = f"ulimit -n 50; exec {shlex.join(words)}"
        done = run("sh", "-c", limited)
    assert_one_clear_line(done, "Too many open files")


def test_no_server_is_one_clear_line():
    with ScriptedPeer(answer_all) as peer:
        peer.stop_listening()
        done = run_here(main, *flags(peer))
    assert_one_clear_line(done, "Error: no server can be reached at 127.0.0.1:")


@pytest.mark.parametrize("code", ["unknown_collection", "invalid_request"])
def test_what_every_question_names_is_refused_before_the_load(code):
    requests = []

    def script(peer):
        while (request := peer.receive()) is not None:
            requests.append(request)
            is_question = "question" in request
            refusal = error_to(request["id"], code, message="no", retryable=False)
            peer.send(refusal if is_question else answer_to(request))

    with ScriptedPeer(script) as peer:
        done = run_here(main, *flags(peer), "--collection=nope", "--max_passages=3")
    assert_one_clear_line(done, f"Error: no ({code})")
    (asked,) = questions_of(requests)
    assert (asked["collection"], asked["max_passages"]) == ("nope", 3)


@pytest.mark.parametrize(
    ("code", "hint"), [("unauthorized", "; --token_file or "), ("tls_required", "; use --tls or ")]
)
def test_a_server_that_wants_a_token_or_tls_is_one_clear_line(code, hint):
    refusal = {"code": code, "message": "no", "retryable": False}

    def script(peer):
        while peer.receive() is not None:
            peer.send({"id": None, "error": refusal})

    with ScriptedPeer(script) as peer:
        assert_one_clear_line(run_here(main, *flags(peer)), f"Error: no ({code}){hint}")


def test_a_load_without_a_request_has_nothing_to_report():
    with ScriptedPeer(answer_all) as peer:
        done = run_here(main, *flags(peer, rate=0.001, duration_s=0.1))
    assert_one_clear_line(done, "nothing was asked: --duration_s is too short for this load")


def test_shuffle_draws_from_the_whole_file_by_its_seed(tmp_path):
    def asked(seed: int) -> list[str]:
        seen = []
        file = questions_file(tmp_path, 1000)
        with ScriptedPeer(answer_and_keep(seen)) as peer:
            given = flags(peer, questions_file=file, num_total_clients=1, seed=seed)
            assert run_here(main, *given, "--shuffle").returncode == 0
        return [each["question"] for each in questions_of(seen)]

    first = asked(seed=1)
    assert first == asked(seed=1) != asked(seed=2)
    assert len(set(first)) == 10
    assert max(int(question[1:]) for question in first) > 500


def test_a_rate_is_kept_for_the_duration():
    with ScriptedPeer(answer_all) as peer:
        done = run_program(*flags(peer, rate=200, duration_s=0.5, num_simultaneous_clients=3))
        assert peer.connections == 3 + 3
    assert done.returncode == 0
    assert 50 < int(done.stdout.partition("Requests:")[2].split()[0]) < 150
    assert "Generator:   " in done.stdout


def test_a_sweep_of_a_running_server_makes_a_table(tmp_path):
    file = tmp_path / "sweep.csv"
    with ScriptedPeer(answer_all) as peer:
        given = flags(peer, clients="1,2", num_total_clients=4, csv=file)
        done = run_program(*given, "--sweep")
        assert peer.connections == 1 + 2 * (4 + 2)
    assert done.returncode == 0
    assert "| clients | " in done.stdout
    assert "\n|       2 | " in done.stdout
    assert "Closed loop: each client asks when it has its answer; 40 requests a cell" in done.stdout
    one, two = csv.DictReader(file.open())
    assert (one["clients"], two["clients"]) == ("1", "2")
    assert one["answered"] == two["answered"] == "40"
    assert 0 < float(one["p50_ms"]) <= float(one["p90_ms"]) <= float(one["p99_ms"])


@pytest.mark.slow
def test_a_sweep_of_rates_prints_a_table_and_writes_a_plot(tmp_path):
    skip_without("matplotlib", "the extra `bench` is not installed")
    file = tmp_path / "sweep.png"
    with ScriptedPeer(answer_all) as peer:
        done = run_program(*flags(peer, rate="100,200", duration_s=0.3, plot=file), "--sweep")
    assert done.returncode == 0, done.stderr
    assert "| offered, requests/s | " in done.stdout
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(([f"--{flag}", "0"], f"error: argument --{flag}")
          for flag in ("num_simultaneous_clients", "num_total_clients", "port")),
        (["--rate", "1,2"], "only with --sweep"),
        (["--rate", "0"], "argument --rate: 0 is not a rate above 0"),
        (["--sweep", "--clients", "1,x"], "argument --clients: invalid"),
        (["--sessions", "1"], "--clients, --sessions and --plot are for --sweep"),
        (["--clients", "1"], "--clients, --sessions and --plot are for --sweep"),
        (["--max_batch_size", "1"], "unrecognized arguments: --max_batch_size 1"),
        (["--duration_s", "inf"], "argument --duration_s: inf is not a time above 0"),
    ],
)  # fmt: skip
def test_contradicting_flags_are_refused(given, words):
    done = run_here(main, *given)
    assert (done.stdout, done.returncode) == ("", 2)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--sessions", "1", "--model", "nowhere"], "the server did not start: "),
        (["--sessions", "1", "--max_batch_sise", "2"], "did you mean --max_batch_size?"),
        (["--csv", "nowhere/sweep.csv"], "nowhere/sweep.csv"),
        (["--plot", "nowhere/sweep.png"], ""),
    ],
)
def test_a_sweep_that_cannot_begin_is_one_clear_line(given, words):
    with ScriptedPeer(answer_all) as peer:
        done = run_here(main, *flags(peer), "--sweep", *given)
    assert_one_clear_line(done, words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--duration_s=1000", "--sweep"], "(cut short)"),
        (["--num_request_per_client=1000000"], "Latency: "),
    ],
    ids=["a sweep", "a load"],
)
def test_ctrl_c_reports_what_was_measured(given, words):
    with ScriptedPeer(answer_all) as peer, Terminal([*PROGRAM, *flags(peer), *given]) as terminal:
        terminal.expect("request/s]")
        terminal.expect("request/s]")
        assert terminal.interrupt() == 130
        assert words in terminal.rest
        assert "Traceback" not in terminal.rest
