"""A server with hooks: the example, and a class of the test's that fails on a question."""

import os
import signal
from contextlib import contextmanager

import pytest

from harness.collections import index, write_documents
from harness.frames import frame, receive
from harness.server import INSTANT, ONE_INSTANCE, RunningServer
from tests.programs import fail_to_start

TEXT = (
    "Employees have 25 days of paid time off. Requests go to office@example.org by mail. "
    "Nobody is paid for working from home."
)
FAULTY = """
from examples.office_hooks import OfficeHooks

class FaultyHooks(OfficeHooks):
    def question(self, question):
        if "crash" in question:
            raise ValueError("a secret of the server")
        if "stop" in question:
            raise KeyboardInterrupt("a secret of the server")
        return super().question(question)
"""


@contextmanager
def hooked_server(model, *flags):
    """A server whose log may have tracebacks."""
    server = RunningServer(model, *ONE_INSTANCE, *flags)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def server(quick_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hooks")
    (folder / "faulty_hooks.py").write_text(FAULTY)
    collection = index(write_documents(folder / "documents"), folder / "collection")
    file = folder / "server.toml"
    file.write_text(
        f'[collections.machines]\npath = "{collection}"\n[cache]\ncache_bytes = 1048576\n'
        f'[models.plain]\npath = "{quick_model}"\n'
        f'[models.hooked]\npath = "{quick_model}"\nhooks = "faulty_hooks:FaultyHooks"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        with hooked_server(quick_model, "--config", str(file)) as running:
            yield running


def ask_all(server, *questions, model="hooked"):
    """Asks questions about the text on one connection; returns their replies in order."""
    with server.connect() as sock:
        for number, question in enumerate(questions):
            asked = {"id": number, "question": question, "text": TEXT, "model": model}
            sock.sendall(frame(asked))
        replies = sorted((receive(sock) for _ in questions), key=lambda reply: reply["id"])
    return [reply.get("answer", reply.get("error")) for reply in replies]


def test_a_question_on_which_the_hooks_fail_fails_alone(server):
    asked = "How many days of PTO do employees have?"
    pids = server.worker_pids()
    questions = (asked, "Will it crash?", "Will it stop?", "What salary?", asked)
    first, *errors, refused, last = ask_all(server, *questions)
    assert "25" in first
    assert first == last
    assert [error["code"] for error in errors] == ["internal_error"] * 2
    assert "secret" not in str(errors)
    assert "salaries" in refused["message"]
    assert refused["code"] == "invalid_request"
    server.wait_for_log("failed on a request: ValueError in")
    server.wait_for_log("failed on a request: KeyboardInterrupt in")
    assert "secret" not in server.log
    assert server.worker_pids() == pids


def test_the_other_model_answers_the_same_question_without_hooks(server):
    question = "Where do requests go?"
    for _ in range(2):  # the second time from the cache
        (plain,) = ask_all(server, question, model="plain")
        (hooked,) = ask_all(server, question)
        assert "office@example.org" in plain
        assert "@" not in hooked


def test_long_texts_and_collections_pass_the_hooks(server):
    text = f"{TEXT} {'The river runs by the town. ' * 200}"
    question = "How many days of PTO do employees have?"
    reply = server.ask(question=question, text=text, model="hooked")
    assert "25" in reply["answer"]
    assert text[reply["start"] : reply["end"]] == reply["answer"]
    asked = {"question": "Who wrote the first compiler?", "collection": "machines"}
    plain, hooked = (server.ask(**asked, model=model) for model in ("plain", "hooked"))
    assert hooked["answer"] == plain["answer"] == "Grace Hopper"
    assert hooked["score"] == pytest.approx(plain["score"], abs=1e-3)
    error = server.ask(question="Who could crash it?", collection="machines", model="hooked")
    assert error["error"]["code"] == "internal_error"


def test_hooks_that_cannot_be_loaded_end_the_start_with_one_line(quick_model):
    ended = fail_to_start("--model", quick_model, *ONE_INSTANCE, "--hooks", "no_such_module:C")
    line = "hooks no_such_module:C cannot be loaded: ModuleNotFoundError: No module named"
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("server.py: ")
    assert line in last


def test_the_example_is_loaded_from_the_folder_where_the_server_starts(quick_model):
    flags = (*INSTANT, "--hooks", "examples.office_hooks:OfficeHooks")
    with hooked_server(quick_model, *flags) as server:
        error = server.ask(question="What salary?", text=TEXT)["error"]
        assert "salaries" in error["message"]


class TestChangedFile:
    """A hook's file changes, and an instance dies."""

    CODE = """
from dataclasses import replace
from qa_service.instance.hooks import Hooks

class Cut(Hooks):
    def answers(self, answers):
        return [replace(answer, end=answer.start + {length}) for answer in answers]
"""
    QUESTIONS = tuple(f"What is number {number}?" for number in range(40))

    @pytest.fixture
    def write(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

        def write(length):
            (tmp_path / "cut_hooks.py").write_text(self.CODE.format(length=length))

        write(1)
        return write

    def answers(self, server):
        return {server.ask(question=question, text=TEXT)["answer"] for question in self.QUESTIONS}

    @pytest.mark.parametrize("is_in_file", [False, True])
    def test_old_and_new_code_never_answer_together_nor_does_the_cache(
        self, quick_model, tmp_path, write, is_in_file
    ):
        flags = ["--inference_engine_type", "instant", "--num_inference_sessions", "2"]
        flags += ["--cache_bytes", "1000000", "--hooks", "cut_hooks:Cut"]
        if is_in_file:
            file = tmp_path / "server.toml"
            file.write_text(f'[models.m]\npath = "{quick_model}"\n')
            flags += ["--config", str(file)]
        with hooked_server(quick_model, *flags) as server:
            write(2)  # as long as the old one, and perhaps in the same second
            os.kill(server.worker_pids()[0], signal.SIGKILL)
            server.wait_for_log("cut_hooks.py has changed since")
            assert self.answers(server) == {TEXT[:1]}
            server.signal(signal.SIGHUP)
            server.wait_for_log("the reloaded model serves")
            assert self.answers(server) == {TEXT[:2]}

    def test_a_poll_notices_it(self, quick_model, write):
        flags = ("--inference_engine_type", "instant", "--hooks", "cut_hooks:Cut")
        with hooked_server(quick_model, *flags, "--poll_interval_s", "1") as server:
            write(2)
            server.wait_for_log("the reloaded model serves")
            assert server.ask(question="who?", text=TEXT)["answer"] == TEXT[:2]
