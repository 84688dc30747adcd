"""QaClient, client.py, stress_test.py and the demo against the real server."""

import pytest

from harness.server import ONE_INSTANCE, ROOT, running_server
from qa_service.client import Answer, QaClient
from qa_service.data.squad import OWN_QUESTIONS, f1_score, read_squad
from tests.programs import run_python
from tests.support import all_of

pytestmark = pytest.mark.slow

QUESTIONS = read_squad(OWN_QUESTIONS)
CLIENT = ("-S", "-E", "-s", str(ROOT / "client.py"))
"""With the standard library alone."""
TEXT = "Ada Lovelace wrote the notes in London in 1843."


@pytest.fixture(scope="module")
def port(quick_model):
    # Less than the client's window, so that the server has to hold it back.
    flags = (*ONE_INSTANCE, "--max_in_flight_per_connection", "4")
    with running_server(quick_model, *flags) as server:
        yield str(server.port)


@pytest.mark.usefixtures("quick_model", "encoder")
def test_the_demo_gets_the_answers_that_it_expects():
    done = run_python("examples/demo.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pipelined_questions_come_back_in_order(port):
    with QaClient("localhost", int(port)) as client:
        results = client.ask_many((q.question, q.context) for q in QUESTIONS)
    scores = []
    for question, answer in zip(QUESTIONS, all_of(Answer, results), strict=True):
        assert question.context[answer.start : answer.end] == answer.answer
        scores.append(f1_score(answer.answer, question.answers))
    assert sum(scores) / len(scores) > 0.6, "they are easy, if each has its own answer"


def test_items_that_the_server_refuses_cost_only_themselves(port):
    pairs = [("Who wrote the notes?", TEXT)] * 9
    pairs[2] = ("Who?", "x" * 2_000_000)
    pairs[4] = ("", TEXT)
    pairs[7] = ("Who?", "x" * 3_000_000)
    with QaClient("localhost", int(port)) as client:
        results = client.ask_many(pairs)
    seen = [result.answer if isinstance(result, Answer) else result.code for result in results]
    expected = ["Ada Lovelace"] * 9
    expected[2] = expected[7] = "frame_too_large"
    expected[4] = "invalid_request"
    assert seen == expected


def test_the_readmes_question_gets_the_readmes_answer(port):
    article = ROOT / "examples" / "article.txt"
    given = ["--question", "When did the New York Times print it?", "--text_file", str(article)]
    done = run_python(*CLIENT, "--port", port, *given)
    assert (done.stdout, done.returncode) == ("July 22, 2014\n", 0)


@pytest.mark.parametrize("flag", ["--collection=nope", "--model=nope"])
def test_a_conversation_ends_with_a_refusal_of_its_flags(port, flag):
    done = run_python(*CLIENT, "--port", port, flag, input="Text.\nWho?\nWhen?\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("Error: there is no ") == 1


def test_a_sweep_starts_and_stops_its_servers(quick_model):
    flags = ["--sweep", "--sessions", "1,2", "--clients", "1,4", "--num_total_clients", "4"]
    ours = ["--model", str(quick_model), "--num_request_per_client", "3"]
    ours += ["--inference_engine_type", "instant"]
    done = run_python("stress_test.py", *flags, *ours)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("|  ")] == ["1", "4"] * 2
    assert "1 instance, instant" in lines[2]
    assert "2 instances, instant" in lines[2]
