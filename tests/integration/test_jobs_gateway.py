"""The gateway and the tools against a real RabbitMQ and a real server, each a process."""

import asyncio
import itertools
import json
from typing import Any

import pytest

pytest.importorskip("aio_pika", reason="no aio-pika: pip install '.[jobs]'")

from harness.jobs import (
    declare,
    depth,
    flags_of,
    job,
    metrics_when,
    publish,
    queues_of,
    run_jobs,
    running_gateway,
    take,
)
from harness.process import reserve_port, wait_until
from harness.server import running_server
from qa_service.programs.jobs.jobs_options import RetryOptions
from qa_service.programs.jobs.program import main
from tests.programs import run_here

pytestmark = pytest.mark.slow

TEXT = "Ada Lovelace wrote the notes in 1843."
ASK = {"id": "n1", "question": "Who wrote the notes?", "text": TEXT}
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(builtin_model):
    with running_server(builtin_model, "--inference_engine_type", "instant") as running:
        yield running


@pytest.fixture
def queues():
    return queues_of(f"gateway{next(numbers)}", retry=RetryOptions(retry_delays_s="1"))


@pytest.fixture
def flags(rabbit, queues):
    """The flags of the queues and of the broker."""
    return [*flags_of(queues), f"--broker_url={rabbit.url}"]


def outcome(message) -> dict:
    return json.loads(message.body)


def play(*coroutines):
    """Runs one after another; returns what the last one does."""

    async def run():
        return [await coroutine for coroutine in coroutines][-1]

    return asyncio.run(run())


def test_an_answer_goes_to_the_results_queue_under_the_jobs_name(rabbit, server, queues):
    jobs = [job("m1", ASK, correlation_id="c1"), job("m2", ASK)]
    with running_gateway(rabbit.url, server.port, queues):
        answers = play(
            publish(rabbit.url, queues.jobs_queue, jobs), take(rabbit.url, queues.results_queue, 2)
        )
    # They are published as they are ready, in no order.
    first, second = sorted(answers, key=lambda answer: answer.message_id)
    assert outcome(first) == outcome(first) | {"id": "n1", "answer": "Ada", "start": 0, "end": 3}
    assert (first.message_id, first.correlation_id) == ("m1", "c1")
    assert (second.message_id, second.correlation_id) == ("m2", "m2")


def test_an_answer_goes_to_reply_to(rabbit, server, queues):
    jobs = [job("m1", ASK, reply_to=queues.dead_queue)]
    with running_gateway(rabbit.url, server.port, queues):
        [message] = play(
            publish(rabbit.url, queues.jobs_queue, jobs), take(rabbit.url, queues.dead_queue, 1)
        )
    assert outcome(message)["answer"] == "Ada"


def test_a_job_without_a_queue_for_its_answer_is_dead_lettered(rabbit, server, queues):
    jobs = [job("m1", ASK, reply_to="nowhere"), job("m2", ASK)]
    with running_gateway(rabbit.url, server.port, queues):
        [dead] = play(
            publish(rabbit.url, queues.jobs_queue, jobs), take(rabbit.url, queues.dead_queue, 1)
        )
        [answer] = play(take(rabbit.url, queues.results_queue, 1))
    assert (dead.message_id, answer.message_id) == ("m1", "m2")
    assert dead.headers["qa-reason"] == "unroutable: there is no queue nowhere"


POISON: list[tuple[bytes | dict[str, Any], str]] = [
    (b"{", "invalid_frame"),
    (b"\xff", "invalid_frame"),
    (b'{"id": ' + b"[" * 100_000, "invalid_frame"),
    (b'{"id": "n1", "question": "\\ud800", "text": "t"}', "invalid_frame"),
    ({"id": "n1", "question": 5, "text": "t"}, "invalid_request"),
    ({"id": "n1", "question": "q", "text": " "}, "invalid_request"),
    ({"id": "n1", "type": "health", "question": "q", "text": "t"}, "invalid_request"),
    ({"id": "n1", "question": "q", "text": "t" * (1 << 18)}, "frame_too_large"),
]


def test_a_job_that_cannot_succeed_is_answered_with_its_error_and_dead_lettered_alone(
    rabbit, server, queues
):
    expected = {f"m{i}": code for i, (_, code) in enumerate(POISON)}
    jobs = [job(f"m{i}", body) for i, (body, _) in enumerate(POISON)]
    with running_gateway(rabbit.url, server.port, queues):
        play(publish(rabbit.url, queues.jobs_queue, [*jobs, job("good", ASK)]))
        dead = play(take(rabbit.url, queues.dead_queue, len(POISON)))
        replies = play(take(rabbit.url, queues.results_queue, len(POISON) + 1))
    codes = {reply.message_id: outcome(reply).get("error", {}).get("code") for reply in replies}
    assert codes == expected | {"good": None}
    assert {m.message_id: m.headers["qa-reason"].split(":")[0] for m in dead} == expected


class NoText(str):
    """A property that is not UTF-8 when it is sent."""

    def encode(self, *_):
        return b"\xff\xfe"


def test_a_message_with_unreadable_properties_is_dead_lettered_alone(rabbit, server):
    queues = queues_of("unreadable", delivery_limit=2)
    jobs = [job(f"m{i}", ASK) for i in range(20)]
    jobs[10].correlation_id = NoText("bad")

    async def until_all_are_answered():
        answered = set()
        while len(answered) < 19:
            [answer] = await take(rabbit.url, queues.results_queue, 1)
            answered.add(answer.message_id)

    play(declare(rabbit.url, queues), publish(rabbit.url, queues.jobs_queue, jobs))
    with running_gateway(rabbit.url, server.port, queues) as gateway:
        play(until_all_are_answered())
        gateway.wait_for_log("1 at a time")
    assert play(depth(rabbit.url, queues.dead_queue)) == 1


def test_the_gateway_serves_its_metrics(rabbit, server, queues):
    port = reserve_port()
    with running_gateway(rabbit.url, server.port, queues, f"--metrics_port={port}"):
        play(
            publish(rabbit.url, queues.jobs_queue, [job("m1", ASK), job("m2", b"{")]),
            take(rabbit.url, queues.results_queue, 2),
            take(rabbit.url, queues.dead_queue, 1),
        )
        # It counts a job as done when the broker has heard of it, which is after we have taken it.
        lines = metrics_when(port, lambda lines: "qa_jobs_in_flight 0.0" in lines)
    assert lines >= {
        "qa_jobs_consumed_total 2.0",
        "qa_jobs_answered_total 1.0",
        'qa_jobs_dead_total{code="invalid_frame"} 1.0',
        "qa_jobs_in_flight 0.0",
        "qa_jobs_oldest_age_seconds 0.0",
    }


def test_a_queue_with_other_settings_ends_the_start_with_its_name(rabbit, server, queues, flags):
    play(declare(rabbit.url, queues))
    ran = run_jobs("gateway", f"--port={server.port}", *flags, "--delivery_limit=7")
    assert ran.returncode == 2
    assert queues.jobs_queue in ran.stderr


def test_submitted_jobs_are_collected_and_counted_by_status(
    rabbit, server, queues, flags, tmp_path
):
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    lines = [json.dumps(ASK | {"id": f"n{i}"}) for i in range(50)]
    questions.write_text("\n".join(lines))
    ran = run_jobs("submit", str(questions), *flags)
    assert ran.stdout == f"50 jobs submitted to {queues.jobs_queue}, 0 are answered already\n"
    ran = run_jobs("status", "--interval_s=0.1", *flags)
    assert ran.stdout.endswith("no gateway takes jobs\n")
    assert ran.stdout.splitlines()[1].split()[:2] == [queues.jobs_queue, "50"]
    with running_gateway(rabbit.url, server.port, queues):
        ran = run_jobs("collect", f"--output={answers}", "--count=50", *flags)
        assert ran.returncode == 0
    with answers.open("ab") as file:
        file.write(b'{"message_id": "cut sh')
    questions.write_text("\n".join([*lines, "{", json.dumps(ASK | {"id": "new"})]))
    ran = run_jobs("submit", str(questions), f"--answers={answers}", *flags)
    assert ran.stdout == (
        f"1 jobs submitted to {queues.jobs_queue}, 50 are answered already, 1 cannot be read\n"
    )
    assert (ran.returncode, f"{questions}, line 51: " in ran.stderr) == (1, True)
    with running_gateway(rabbit.url, server.port, queues):
        run_jobs("collect", f"--output={answers}", "--count=51", *flags)
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    expected = sorted([*(f"n{i}" for i in range(50)), "new"])
    assert sorted(answer["id"] for answer in found) == expected


def test_collect_drops_a_second_answer(rabbit, queues, flags, tmp_path):
    answers = [job("m1", {"answer": "a"}), job("m1", {"answer": "b"}), job("m2", {"answer": "c"})]
    play(declare(rabbit.url, queues), publish(rabbit.url, queues.results_queue, answers))
    path = tmp_path / "answers.jsonl"
    ran = run_jobs("collect", f"--output={path}", *flags)
    assert ran.stdout == f"2 answers added, 1 dropped as duplicates, 2 in {path}\n"
    first, second = '{"message_id":"m1","answer":"a"}\n', '{"message_id":"m2","answer":"c"}\n'
    assert path.read_text() == first + second
    assert play(depth(rabbit.url, queues.results_queue)) == 0


def test_collect_takes_the_given_number_and_leaves_the_rest(rabbit, queues, flags, tmp_path):
    answers = [job(f"m{i}", {"answer": "a"}) for i in range(30)]
    play(declare(rabbit.url, queues))
    play(publish(rabbit.url, queues.results_queue, [*answers[:8], *answers[:4], *answers[8:]]))
    path = tmp_path / "answers.jsonl"
    for count in (10, 15):
        assert run_jobs("collect", f"--output={path}", f"--count={count}", *flags).returncode == 0
        assert len(path.read_text().splitlines()) == count
        # The broker puts back what was on its way to a connection that has ended, soon after.
        wait_until(lambda: play(depth(rabbit.url, queues.results_queue)), (30 - count).__eq__)


def test_status_sees_who_takes_jobs(rabbit, server, queues, flags):
    with running_gateway(rabbit.url, server.port, queues):
        ran = run_jobs("status", "--interval_s=0.1", *flags)
    _, jobs, *_, verdict = ran.stdout.splitlines()
    assert (jobs.split()[0], jobs.split()[-1]) == (queues.jobs_queue, "1")
    assert verdict == "no job waits"


def test_dead_jobs_are_listed_retried_and_dropped(rabbit, server, queues, flags):
    with running_gateway(rabbit.url, server.port, queues):
        bad = [job(f"m{i}", {"question": "q", "text": ""}) for i in range(3)]
        play(publish(rabbit.url, queues.jobs_queue, bad), take(rabbit.url, queues.results_queue, 3))
        listed = run_jobs("dead", "list", *flags).stdout.splitlines()
        assert len(listed) == 4
        assert "m0  invalid_request: `text` is empty  'q'" in listed
        ran = run_jobs("dead", "retry", "--message_id=m1", "--message_id=m9", *flags)
        words = [f"1 jobs put back from {queues.dead_queue}", f"m9 is not in {queues.dead_queue}"]
        assert (ran.returncode, ran.stdout.splitlines()[1:]) == (1, words)
        [again] = play(take(rabbit.url, queues.results_queue, 1))
        assert again.message_id == "m1"
    ran = run_jobs("dead", "drop", *flags)
    assert ran.stdout.splitlines()[-1] == f"3 jobs dropped from {queues.dead_queue}"
    assert play(depth(rabbit.url, queues.dead_queue)) == 0


def test_an_unreachable_broker_is_one_line(queues):
    ran = run_jobs("status", f"--broker_url=amqp://127.0.0.1:{reserve_port()}/", *flags_of(queues))
    assert ran.returncode == 2
    assert ran.stderr.startswith("jobs.py: no connection to the broker")


@pytest.mark.parametrize(
    "url", ["nonsense", "amqp://[::1", "amqp://h:port/", "http://h", "amqp://"]
)
def test_an_address_of_no_broker_is_one_line_without_its_password(queues, url, monkeypatch):
    monkeypatch.setenv("QA_BROKER_URL", url)
    ran = run_here(main, "status", *flags_of(queues))
    assert (ran.returncode, ran.stdout) == (2, "")
    form = "amqp://user:password@host:port/vhost"
    assert ran.stderr == f"a program: QA_BROKER_URL is not an address of the form {form}\n"
