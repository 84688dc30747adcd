"""Programs that are stopped while they load their modules, or whose output nobody reads."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process import GIVE_UP_S, wait_until
from harness.server import INSTANT, ROOT, running_server
from tests.programs import run
from tests.support import present

SERVER = [sys.executable, "server.py", "--port", "0", "--inference_engine_type", "instant"]

CODE = "import sys; from qa_service import entry; sys.exit(getattr(entry, sys.argv.pop(1))())"
ENTRY = [
    sys.executable,
    "-c",
    CODE,
]
PROGRAMS = {
    "server": SERVER,
    "jobs": [sys.executable, "jobs.py", "gateway", "--broker_url", "amqp://127.0.0.1:1/"],
    "grpc_gateway": [*ENTRY, "grpc_gateway", "--unix_socket", "/no/socket", "--port", "0"],
    "index": [*ENTRY, "index", "docs", "--output", "/no/folder"],
    "prepare_model": [sys.executable, "prepare_model.py", "--output_dir", "/proc/no/folder"],
}


def catches_sigterm(pid: int) -> bool:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return bool(int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


def child_of(pid: int) -> int:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes takes root")
@pytest.mark.parametrize("program", PROGRAMS)
def test_process_1_ends_at_a_sigterm_while_its_modules_are_loaded(program):
    command = ["unshare", "--pid", "--fork", "--kill-child", *PROGRAMS[program]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as outer:
        try:
            wait_until(lambda: child_of(outer.pid))
            server = child_of(outer.pid)
            wait_until(lambda: catches_sigterm(server))
            os.kill(server, signal.SIGTERM)
            assert outer.wait(GIVE_UP_S) == 128 + signal.SIGTERM
            assert present(outer.stdout).read() == b""  # it had not yet begun
        finally:
            outer.kill()


@pytest.mark.parametrize("program", ["server", "jobs", "evaluate_model", "index"])
def test_a_program_ends_at_ctrl_c_while_its_modules_are_loaded_without_a_traceback(program):
    command = PROGRAMS.get(program, [*ENTRY, program])
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: catches_sigterm(process.pid))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=GIVE_UP_S)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, b"")


def test_a_server_without_standard_error_keeps_descriptor_2_free(builtin_model):
    script = f"exec 2>&-; exec {' '.join(SERVER)} --model {builtin_model}"
    with subprocess.Popen(["sh", "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert b"listening" in present(server.stdout).readline()
            relay = str(Path(f"/proc/{server.pid}/fd/2").readlink())
            assert relay.startswith("pipe:"), "the next file or socket would have its number"
        finally:
            server.terminate()
            present(server.stdout).read()


ONE_LINE_READ = 'set -o pipefail; "$@" | head -n 1'
NO_STDERR = 'exec "$@" 2>&-'
NO_STDOUT = 'exec "$@" >&-'


def run_in_shell(script: str, *command: str) -> subprocess.CompletedProcess:
    return run("bash", "-c", script, "bash", *command)


@pytest.fixture
def letters(tmp_path):
    """More text than a pipe holds."""
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"Letter {number}.\n\n" * 400)
    return tmp_path


@pytest.mark.parametrize("script", [ONE_LINE_READ, NO_STDERR, NO_STDOUT])
def test_texts_that_nobody_reads_end_with_the_code_of_the_work(letters, script):
    ended = run_in_shell(script, *ENTRY, "index", "--text", str(letters))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Letter 0.\n") == (script != NO_STDOUT)
    (letters / "mail.xyz").write_text("no text")
    ended = run_in_shell(script, *ENTRY, "index", "--text", str(letters / "mail.xyz"))
    assert ended.returncode == 1
    assert ("mail.xyz: a file of another kind" in ended.stderr) == (script != NO_STDERR)


@pytest.fixture(scope="module")
def instant(builtin_model):
    with running_server(builtin_model, *INSTANT) as server:
        yield server


@pytest.mark.parametrize("script", [ONE_LINE_READ, NO_STDERR, NO_STDOUT])
@pytest.mark.parametrize("what", ["--stats", "--health", "--models"])
def test_a_client_whose_output_nobody_reads_ends_with_the_code_of_the_work(instant, script, what):
    client = (sys.executable, "-u", "client.py", "--port", str(instant.port), what)
    ended = run_in_shell(script, *client)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("script", ['exec "$@" 2>&-', 'exec "$@" 2> >(exit)', NO_STDOUT])
def test_a_run_of_questions_without_standard_error_is_made(instant, tmp_path, script):
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text('{"question": "Who?", "text": "Ada wrote."}\n' * 20)
    port = ("--port", str(instant.port))
    jobs = (sys.executable, "jobs.py", "run", str(questions), "--output", str(answers), *port)
    assert run_in_shell(script, *jobs).returncode == 0
    assert answers.read_text().count("\n") == 20


def test_a_run_reads_no_questions_from_a_pipe(instant, tmp_path):
    questions = tmp_path / "questions.jsonl"
    os.mkfifo(questions)
    ended = run_jobs(instant, questions, tmp_path / "answers.jsonl")
    assert ended.returncode == 2
    words = (
        f"jobs.py: {questions} is a pipe or a device, which is not read twice: make a file of it"
    )
    assert ended.stderr.splitlines()[-1] == words


@pytest.mark.parametrize(
    ("output", "script"), [(os.devnull, 'exec "$@"'), ("/dev/stdout", '"$@" | cat')]
)
def test_a_run_passes_answers_on_to_a_device_or_a_pipe_in_order(instant, tmp_path, output, script):
    questions = tmp_path / "questions.jsonl"
    rows = [{"id": f"q{number}", "question": "Who?", "text": "Ada."} for number in range(200)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    link = tmp_path / "answers"
    link.symlink_to(output)
    ended = run_jobs(instant, questions, link, script)
    assert ended.returncode == 0, ended.stderr
    *answers, summary = ended.stdout.splitlines()
    assert summary.startswith("200 answered, 0 failed, 0 had their answers already")
    if output != os.devnull:
        assert [json.loads(line)["id"] for line in answers] == [row["id"] for row in rows]
    assert set(tmp_path.iterdir()) == {questions, link}


def test_a_run_whose_answers_nobody_reads_any_more_ends_with_a_line(instant, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Who?", "text": "Ada."}\n')
    ended = run_jobs(instant, questions, "/dev/fd/9", 'exec "$@" 9> >(exit)')
    assert ended.returncode == 2
    words = "jobs.py: /dev/fd/9: nobody reads the answers any more"
    assert ended.stderr.splitlines()[-1] == words


def run_jobs(server, questions, output, script='exec "$@"'):
    port = ("--port", str(server.port))
    jobs = (sys.executable, "jobs.py", "run", str(questions), "--output", str(output), *port)
    return run_in_shell(script, *jobs)
