"""`jobs.py run` stopped and killed on its way through a file, against a real server."""

import json
import signal

import pytest

from harness.file_run import Run, asked_of, run_with_stops
from harness.frames import ASK
from harness.jobs import run_jobs
from harness.server import INSTANT, running_server

pytestmark = pytest.mark.slow

COUNT, LANES = 5_000, 64


@pytest.mark.parametrize(
    ("signum", "most_again"), [(signal.SIGTERM, 0), (signal.SIGKILL, 2 * LANES)]
)
def test_a_run_stopped_twice_continues_in_order(builtin_model, tmp_path, signum, most_again):
    with running_server(builtin_model, *INSTANT) as server:
        run = Run(tmp_path, COUNT, (f"--port={server.port}", f"--prefetch={LANES}"))
        run.write_questions()
        run_with_stops(run, 2, signum)
        assert run.wrong_lines() == 0
        assert COUNT <= asked_of(server) <= COUNT + most_again
        assert not run.answers.with_name("answers.jsonl.ahead").exists()


def test_a_collection_that_is_not_there_ends_the_run_and_writes_no_answer(builtin_model, tmp_path):
    questions, output = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text('{"question": "Who?"}\n' * 3)
    with running_server(builtin_model, *INSTANT) as server:
        flags = [str(questions), f"--output={output}", f"--port={server.port}"]
        done = run_jobs("run", *flags, "--collection=nope")
    assert (done.returncode, done.stdout, output.read_bytes()) == (2, "", b"")
    assert done.stderr.startswith("jobs.py: there is no collection nope")


def test_the_exit_code_is_1_each_time_the_output_holds_errors(builtin_model, tmp_path):
    questions, output = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    good = json.dumps(ASK)
    questions.write_text(f"{good}\n{{\n{good}\n")
    with running_server(builtin_model, *INSTANT) as server:
        flags = [str(questions), f"--output={output}", f"--port={server.port}"]
        first, again = run_jobs("run", *flags), run_jobs("run", *flags)
        questions.write_text(f"{good}\n{good}\n{good}\n")
        changed = run_jobs("run", *flags)
    assert (first.returncode, again.returncode, changed.returncode) == (1, 1, 2)
    already = "had their answers already"
    assert first.stdout == f"2 answered, 1 failed, 0 {already}: {output}\n"
    assert again.stdout == f"0 answered, 0 failed, 3 {already}, of which 1 failed: {output}\n"
    assert changed.stderr.startswith(f"jobs.py: {output} holds answers to questions.jsonl, which")
