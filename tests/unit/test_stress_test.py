"""stress_test.py as a user runs it, against a scripted peer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripted_peer import ScriptedPeer, answer_all, answer_to, error_to
from tests.terminal import Terminal

PROGRAM = [sys.executable, str(Path(__file__).parents[2] / "stress_test.py")]


def flags(peer: ScriptedPeer, **numbers: object) -> list[str]:
    given = {"host": peer.host, "port": peer.port} | numbers
    return [f"--{name}={value}" for name, value in given.items()]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, check=False, text=True, timeout=60
    )


def test_defaults_are_the_prototypes_and_the_report_counts_every_request():
    with ScriptedPeer(answer_all) as peer:
        done = run(*flags(peer))
        assert peer.connections == 1 + 100, "one looks whether anybody is there"
    assert done.returncode == 0
    assert "Requests:    1000 answered in " in done.stdout
    assert done.stdout.endswith("Errors:      0\n")
    assert "1000/1000" in done.stderr, "tqdm's bar"


def test_failures_are_counted_by_code():
    def script(peer):
        while (request := peer.receive()) is not None:
            refused = request["id"] % 3 == 2
            peer.send(error_to(request["id"]) if refused else answer_to(request))

    with ScriptedPeer(script) as peer:
        done = run(*flags(peer, num_total_clients=4, num_request_per_client=3))
    assert done.returncode == 1
    assert "Requests:    8 answered" in done.stdout
    assert done.stdout.endswith("Errors:      4 (queue_full 4)\n")


def test_asks_the_questions_of_a_file(tmp_path):
    seen = set()

    def script(peer):
        while (request := peer.receive()) is not None:
            seen.add((request["question"], request["text"]))
            peer.send(answer_to(request))

    paragraph = {"context": "C.", "qas": [{"id": n, "question": f"q{n}"} for n in range(3)]}
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    with ScriptedPeer(script) as peer:
        done = run(*flags(peer, questions_file=file, num_total_clients=2))
    assert done.returncode == 0
    assert seen == {(f"q{number}", "C.") for number in range(3)}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"data": []}'])
def test_a_file_without_questions_is_one_clear_line(tmp_path, content):
    file = tmp_path / "questions.json"
    if content is not None:
        file.write_text(content)
    done = run("--questions_file", str(file))
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_no_server_is_one_clear_line():
    with ScriptedPeer(answer_all) as peer:
        peer.stop_listening()
        done = run(*flags(peer))
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("Error: no server can be reached at 127.0.0.1:")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["num_simultaneous_clients", "num_total_clients", "port"])
def test_numbers_are_at_least_one(flag):
    done = run(f"--{flag}", "0")
    assert done.returncode == 2
    assert f"error: argument --{flag}" in done.stderr


def test_ctrl_c_reports_what_was_measured():
    with (
        ScriptedPeer(answer_all) as peer,
        Terminal([*PROGRAM, *flags(peer, num_request_per_client=1_000_000)]) as terminal,
    ):
        terminal.expect("request/s]")
        terminal.expect("request/s]")
        assert terminal.interrupt() == 130
        assert "Latency: " in terminal.rest
        assert "Traceback" not in terminal.rest
