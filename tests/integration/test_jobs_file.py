"""A run through a file, over real sockets, with a server that does what a test scripts."""

import asyncio
import json

import pytest
from msgspec import structs

from harness.process import GIVE_UP_S
from qa_service.client import QaClientError
from qa_service.programs.jobs import asker as asker_module
from qa_service.programs.jobs.asker import MAX_REFUSALS, Asker
from qa_service.programs.jobs.file_run import FileRun
from qa_service.programs.jobs.jobs_options import AskingOptions, RetryOptions, RunOptions
from qa_service.programs.jobs.questions_file import FileError
from tests.scripted_server import (
    ScriptedServer,
    answered,
    full_for_the_first,
    listening,
    refused_for_ever,
)

ASKING = AskingOptions(prefetch=4, max_attempts=2)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a file of lines; returns what became of them, the answers, and the server."""
    monkeypatch.setattr(asker_module, "LAST_REST_S", 0.0)

    def play(lines, script=answered, watch=lambda run, server: None, **others):
        questions = tmp_path / "questions.jsonl"
        questions.write_text("".join(f"{line}\n" for line in lines))

        async def scenario():
            server = ScriptedServer(script)
            async with asyncio.timeout(GIVE_UP_S), listening(server) as port:
                options = options_in(tmp_path, **others)
                asking = structs.replace(options.asking, host="127.0.0.1", port=port)
                asker = Asker(asking)
                run = FileRun(asker, options)
                watch(run, server)
                return await run.run(), server

        summary, server = asyncio.run(scenario())
        answers = (tmp_path / "answers.jsonl").read_text().splitlines()
        return summary, [json.loads(answer) for answer in answers], server

    return play


def options_in(folder, asking=ASKING, **others):
    return RunOptions(
        asking=asking,
        retry=RetryOptions(retry_delays_s="0"),
        questions=folder / "questions.jsonl",
        output=folder / "answers.jsonl",
        **others,
    )


def question(number):
    return json.dumps({"id": f"n{number}", "question": f"q{number}", "text": "t"})


def test_a_malformed_line_fails_alone_and_is_counted_each_time(run):
    lines = [question(0), "{", "[" * 50_000, question(3)]
    summary, answers, server = run(lines)
    assert (summary.answered, summary.failed, summary.failed_before) == (2, 2, 0)
    assert [answer["id"] for answer in answers] == ["n0", 2, 3, "n3"]
    assert [answer.get("error", {}).get("code") for answer in answers] == [
        None, "invalid_frame", "invalid_frame", None,
    ]  # fmt: skip
    assert answers[1]["error"]["message"] == "line 2: Input data was truncated"
    summary, _, server = run(lines)
    assert (summary.resumed, summary.answered, summary.failed_before) == (4, 0, 2)
    assert server.requests == []


def test_a_question_that_is_never_accepted_fails_and_does_not_block_the_output(run):
    summary, answers, server = run([question(number) for number in range(50)], full_for_the_first)
    assert (summary.answered, summary.failed) == (49, 1)
    assert [answer["id"] for answer in answers] == [f"n{number}" for number in range(50)]
    assert answers[0]["error"]["code"] == "queue_full"
    asked = sum(request["question"] == "q0" for request in server.requests)
    assert asked == MAX_REFUSALS * ASKING.max_attempts


def test_further_questions_are_asked(run):
    run([question(0)])
    summary, answers, server = run([question(0), question(1)])
    assert (summary.resumed, summary.answered, len(server.requests)) == (1, 1, 1)
    assert [answer["id"] for answer in answers] == ["n0", "n1"]


def test_answers_of_which_a_line_was_taken_out_are_not_continued(run, tmp_path):
    lines, output = [question(number) for number in range(4)], tmp_path / "answers.jsonl"
    run(lines[:3])
    first, _, third = output.read_text().splitlines(keepends=True)
    output.write_text(first + third)
    with pytest.raises(FileError, match="line 2: not an answer to this question file"):
        run(lines)
    assert output.read_text() == first + third


def test_a_stop_cancels_questions_that_wait_to_be_asked(run):
    stop = []

    def stop_at_once(request, count):
        stop[0]()  # three others wait: the first window of a server that is full has room for one
        return refused_for_ever(request, count)

    def one_at_a_time(run, _server):
        run._asker.window.limit.value = 1.0
        stop.append(run.stop)

    lines = [question(number) for number in range(8)]
    summary, answers, server = run(lines, stop_at_once, watch=one_at_a_time)
    assert summary.is_stopped
    assert (summary.answered, summary.failed, answers) == (0, 0, [])
    assert len(server.requests) == 1


def test_a_run_ends_when_the_server_is_away_for_too_long(run, tmp_path):
    alone = AskingOptions(prefetch=1)
    server_gone = []

    def answer_once(request, count):
        if count == 1:
            return answered(request, count)
        for close in server_gone:
            close()
        return None

    def closing(_run, server):
        server_gone.append(server.stop_listening)

    with pytest.raises(QaClientError):
        lines = [question(0), question(1)]
        run(lines, answer_once, closing, asking=alone, max_outage_s=0.05)
    assert json.loads((tmp_path / "answers.jsonl").read_text())["id"] == "n0"
