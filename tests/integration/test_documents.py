"""What the documents show, done: each GET with each engine; commands, frames and programs.

What a server replies has the shape that is shown: the same keys, and values of the same types.
"""

import csv
import json
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.collections import index
from harness.documents import (
    PAGES,
    check_output,
    check_shape,
    exchanges,
    shown_frames,
    shown_outputs,
    shown_programs,
)
from harness.frames import ANSWER, ASK, TEXT, frame, receive
from harness.server import ROOT, running_server
from qa_service.data import HANDBOOK_DIR
from qa_service.data.squad import read_squad
from qa_service.engine_catalogue import ENGINES, is_installed
from tests import programs
from tests.http_calls import call
from tests.support import present, skip_without
from tests.terminal import Terminal

pytestmark = pytest.mark.slow

NOT_HERE = ("--host a.", "--host 10.", "--host qa.", "--model ", "--sweep", "--rate")
"""Servers elsewhere, models that are not served here, and loads of half a minute and more."""


OF_OTHERS = ("labels", "Text: ")
"""Outputs of the models of a rollout, and of a conversation; both below."""


def documented_gets() -> list[str]:
    """The paths of docs/HTTP.md, a model's also with a version."""
    rows = re.findall(r"^\| (`/.*?) \| GET", (ROOT / "docs" / "HTTP.md").read_text(), re.MULTILINE)
    found = [path for row in rows for path in re.findall(r"`(/[^`]*)`", row)]
    versions = [path.replace("/M", "/M/versions/1", 1) for path in found if "/M" in path]
    return [path.replace("/M", "/builtin") for path in [*found, *versions]]


@pytest.fixture(scope="module", params=sorted({*ENGINES} - {"tensorrt"}))
def server(request, quick_model):
    """Each engine by its name: what is found fastest here is but one of them."""
    module = ENGINES[request.param].module
    if module and not is_installed(module):
        pytest.skip(f"{module} is not installed")
    flags = ("--inference_engine_type", request.param, "--precision", "fp32", "--cost_table", "off")
    with running_server(quick_model, *flags, "--num_inference_sessions", "1") as running:
        yield running


@pytest.mark.parametrize("path", documented_gets())
def test_every_get_is_answered_whatever_the_engine(server, path):
    reply, head = (call(server.port, method, path) for method in ("GET", "HEAD"))
    kind = reply.headers["Content-Type"]
    assert (reply.status, head.status) == (200, 200)
    assert (head.headers["Content-Type"], head.body) == (kind, b"")
    if kind == "application/json":
        json.loads(reply.body)
    else:
        assert reply.body or kind is None


def test_get_paths_are_found_in_the_pages():
    paths = documented_gets()
    assert {"/", "/metrics", "/v2/models/builtin/stats", "/v2/trace/setting"} <= set(paths)
    assert len(paths) >= 20


@pytest.fixture(scope="module")
def running(builtin_model, tmp_path_factory):
    """As a user starts it, with the collection that the documents ask, of which it reads less."""
    folder = tmp_path_factory.mktemp("handbook")
    collection = index(HANDBOOK_DIR, folder / "handbook")
    config = folder / "server.toml"
    config.write_text(f'[collections.handbook]\npath = "{collection}"\nmax_passages = 4\n')
    with running_server(builtin_model, "--config", str(config)) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the commands are typed, with the files that they name."""
    folder = tmp_path_factory.mktemp("commands")
    questions = ROOT / "qa_service" / "data" / "questions.json"
    first, *_ = read_squad(questions)
    (folder / "article.txt").write_text(first.context)
    (folder / "notes.txt").write_text(TEXT)
    (folder / "dev.json").write_bytes(questions.read_bytes())
    (folder / "questions.json").write_bytes(questions.read_bytes())
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "text"), ("Who?", TEXT)])
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "questions.jsonl").write_text(json.dumps({"question": "Who?", "text": TEXT}) + "\n")
    return folder


def runnable() -> list[tuple[list[str], str]]:
    """The commands that ask a server on this machine, and end; with what they print."""
    programs = {"client.py", "stress_test.py", "jobs.py", "qa-client", "qa-stress-test", "qa-jobs"}
    found = []
    for words, output in (shown for page in PAGES for shown in shown_outputs(page)):
        is_ours = bool(programs & set(words[:2])) and (
            "jobs" not in " ".join(words[:2]) or "run" in words
        )
        is_here = not any(sign in " ".join(words) for sign in NOT_HERE)
        if (is_ours or words[0] == "curl") and is_here and (words, output) not in found:
            found.append((words, output))
    return found


@pytest.mark.parametrize(
    ("words", "output"), runnable(), ids=[" ".join(words)[:80] for words, _ in runnable()]
)
def test_a_command_that_asks_a_server_is_answered(running, folder, words, output):
    (folder / "answers.jsonl").unlink(missing_ok=True)  # of another page's questions
    done = run(words, running.port, folder)
    # 1 is the client's for a question that the text does not answer.
    expected = {0, 1} if "--question" in words else {0}
    assert done.returncode in expected, done.stdout + done.stderr + running.log
    assert "Traceback" not in done.stderr
    if output and not any(sign in output for sign in OF_OTHERS):
        check_output(output, done.stdout + done.stderr * (words[0] != "curl"))


def run(words: list[str], port: int, folder: Path) -> CompletedProcess[str]:
    """Runs a command against the server at this port."""
    if words[0] == "curl":
        command = [word.replace("localhost:9999", f"localhost:{port}") for word in words]
        return programs.run(*command, cwd=folder)
    program, *flags = words if words[0].startswith("qa-") else words[1:]
    name = program.removeprefix("qa-").replace("-", "_").removesuffix(".py")
    if name == "stress_test":
        # Of a hundred, and of ten: each question to a collection has many passages read.
        flags += ("--num_total_clients", "2", "--num_request_per_client", "2")
    script = ROOT / f"{name}.py"
    return programs.run_python(script, *flags, "--port", port, cwd=folder, input="")


def test_a_servers_ready_line_is_the_pages(running):
    page = (ROOT / "docs" / "OPERATING.md").read_text()
    shown = present(re.search("^QA server ready on .*", page, re.MULTILINE))[0]
    lines = (shown, running.ready_line)
    check_output(*(re.sub(r"\w+ engine in \w+ \(.*\)", "ENGINE", line) for line in lines))


def test_a_conversation_goes_as_on_the_page(running):
    [shown] = [output for words, output in runnable() if "Text: " in output]
    with Terminal([sys.executable, "client.py", "--port", str(running.port)]) as terminal:
        for line in shown.splitlines():
            if typed := re.fullmatch("((?:Text|Question): )(.*)", line):
                terminal.expect(typed[1])
                terminal.type(f"{typed[2]}\r")
            else:
                terminal.expect(re.split(r"\d", line.strip())[0])


@pytest.fixture(scope="module")
def rollout(builtin_model, tmp_path_factory):
    """A model in two versions, one of them a canary, as in docs/MODELS.md."""
    folder = tmp_path_factory.mktemp("rollout")
    for version in ("1", "2"):
        (folder / version).symlink_to(builtin_model)
    (folder / "server.toml").write_text(f"""
[models.qa]
path = "{folder}"
labels = {{ stable = 1, canary = 2 }}
traffic = {{ stable = 95, canary = 5 }}
num_inference_sessions = 1
""")
    flags = ("--inference_engine_type", "onnx", "--precision", "fp32")  # as shown
    with running_server(builtin_model, *flags, "--config", str(folder / "server.toml")) as server:
        yield server


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (words, output)
        for words, output in shown_outputs(ROOT / "docs" / "MODELS.md")
        if "canary" in f"{words} {output}"
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_for_the_canary_prints_the_output_shown(rollout, folder, words, output):
    done = run(words, rollout.port, folder)
    assert done.returncode == 0, done.stderr
    check_output(output, done.stdout)


def test_commands_are_found_in_the_pages():
    programs = {word for words, _ in runnable() for word in words[:2]}
    assert programs >= {"curl", "client.py", "stress_test.py", "jobs.py", "qa-client"}


@pytest.mark.parametrize(
    "frames",
    [frames for page in PAGES for frames in shown_frames(page)],
    ids=lambda frames: json.dumps(frames[0])[:80],
)
def test_a_frame_gets_the_reply_that_the_page_shows(running, frames):
    running.ask(**ASK)  # so that there are statistics
    with running.connect() as sock:
        for sent, reply in exchanges(frames):
            sock.sendall(b"".join(map(frame, sent)))
            check_shape(reply, receive(sock))


@pytest.mark.parametrize(
    "program",
    [
        program
        for page in (ROOT / "README.md", ROOT / "docs" / "HTTP.md")
        for program in shown_programs(page)
    ],
    ids=lambda program: program.split("\n", 1)[0],
)
def test_a_program_that_asks_a_server_is_answered(running, program):
    if "tritonclient" in program:
        skip_without("tritonclient", "no tritonclient: pip install '.[test]'")
    here = program.replace("localhost:9999", f"localhost:{running.port}")
    here = here.replace('"localhost", 9999', f'"localhost", {running.port}')
    done = programs.run_python("-c", here)
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout


def test_a_question_has_its_answer_whatever_the_engine(server):
    answer = server.ask(**ASK)["answer"]
    assert answer == (TEXT.split()[0] if "instant" in server.ready_line else ANSWER)
