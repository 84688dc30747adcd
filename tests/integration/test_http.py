"""HTTP clients as they are, against a running server: curl, Triton's, and plain sockets."""

import asyncio
import http.client
import json
import os
import shutil

import numpy as np
import pytest

from harness.frames import ANSWER, ASK, FIRST_WORD, QUESTIONS, TEXT
from harness.gateway import answers, inputs
from harness.process import GIVE_UP_S, held_still, wait_until
from harness.server import INSTANT, running_server
from tests.http_calls import get, tensors
from tests.programs import run

QUEUEING = (*INSTANT, "--max_batch_size", "1")
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")


class TestPlain:
    @needs_curl
    def test_curl_gets_100_continue(self, server, tmp_path):
        body = tmp_path / "body"
        body.write_text(json.dumps({**ASK, "text": TEXT + " And so on." * 100}))
        command = ["curl", "-sSv", "-H", "Expect: 100-continue", f"localhost:{server.port}/qa",
                   "-d", f"@{body}", "--expect100-timeout", "30"]  # fmt: skip
        ran = run(*command)
        assert "< HTTP/1.1 100 Continue" in ran.stderr
        assert json.loads(ran.stdout)["answer"] == ANSWER

    @needs_curl
    def test_curls_chunked_body_with_an_http_2_offer_is_answered(self, server):
        urls = [f"localhost:{server.port}/qa"] * 2
        command = ["curl", "-sSv", "--http2", "-H", "Transfer-Encoding: chunked",
                   "-d", json.dumps(ASK), *urls]  # fmt: skip
        ran = run(*command)
        assert "> Upgrade: h2c" in ran.stderr
        assert "< HTTP/1.1 200 OK" in ran.stderr
        assert "Re-using existing connection" in ran.stderr
        assert ran.stdout.count(json.dumps(ANSWER)) == 2

    def test_no_http_refuses_http_requests(self, builtin_model):
        with running_server(builtin_model, *INSTANT, "--no-http") as its, its.connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"frame_too_large" in sock.recv(1000)


class TestTritonClient:
    @pytest.fixture
    def triton(self):
        return pytest.importorskip("tritonclient.http", reason="there is no tritonclient")

    @pytest.fixture
    def client(self, server, triton):
        with triton.InferenceServerClient(f"localhost:{server.port}") as client:
            yield client

    def test_live_ready_and_metadata_over_http(self, client):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("builtin")
        assert client.is_model_ready("builtin", "1")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["name"] == "qa-server"
        assert client.get_model_metadata("builtin")["inputs"][0]["datatype"] == "BYTES"
        assert client.get_model_config("builtin")["dynamic_batching"]
        [model] = client.get_model_repository_index()
        assert (model["name"], model["state"]) == ("builtin", "READY")
        assert client.get_trace_settings()["trace_level"] == ["OFF"]
        assert client.get_log_settings()["log_info"]
        assert client.get_system_shared_memory_status() == []
        client.unregister_system_shared_memory()

    @pytest.mark.parametrize("binary", [True, False])
    @pytest.mark.parametrize("shape", [(), (4, 1)])
    def test_several_questions_in_one_request_are_answered_in_order(
        self, triton, client, binary, shape
    ):
        its = inputs(triton, list(QUESTIONS), shape=shape, binary_data=binary)
        wanted = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("answer", "start")]
        result = client.infer("builtin", its, outputs=wanted, request_id="17")
        assert result.get_response()["id"] == "17"
        assert answers(result) == list(QUESTIONS.values())
        starts = [TEXT.index(answer) for answer in QUESTIONS.values()]
        assert result.as_numpy("start").flatten().tolist() == starts
        assert result.as_numpy("answer").shape == (shape or (4,))

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    def test_a_compressed_request_gets_a_compressed_reply(self, triton, client, coding):
        result = client.infer(
            "builtin", inputs(triton, list(QUESTIONS)), parameters={"top_k": 2},
            request_compression_algorithm=coding, response_compression_algorithm=coding,
        )  # fmt: skip
        found = result.as_numpy("answer")
        assert found.shape == (4, 2)
        assert [row[0].decode() for row in found] == list(QUESTIONS.values())
        assert result.as_numpy("score").dtype == np.float32

    @pytest.mark.parametrize(
        ("options", "status"),
        [
            ({"model_name": "other"}, "404"),
            ({"model_name": "builtin", "model_version": "7"}, "404"),
            ({"model_name": "builtin", "parameters": {"top_k": 99}}, "400"),
        ],
    )
    def test_errors_have_their_status_and_message(self, triton, client, options, status):
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer(inputs=inputs(triton, ["Who?"]), **options)
        assert caught.value.status() == status
        assert caught.value.message()

    def test_a_timeout_is_an_error(self, triton, builtin_model):
        import gevent  # what tritonclient sends with

        with (
            running_server(builtin_model, *QUEUEING) as busy,
            triton.InferenceServerClient(f"localhost:{busy.port}", concurrency=2) as client,
        ):
            with held_still(busy.worker_pids()):
                first = client.async_infer("builtin", inputs(triton, list(QUESTIONS) * 8))
                while not busy.stats()["gauges"]["queue_length"]:
                    gevent.sleep(0.01)  # the first request is sent meanwhile
                words = r"its (timeout|deadline)"
                with pytest.raises(triton.InferenceServerException, match=words):
                    client.infer("builtin", inputs(triton, ["Who?"]), timeout=1)
            assert len(answers(first.get_result())) == 32

    def test_statistics_count_each_question(self, triton, client):
        def counts():
            [model] = client.get_inference_statistics("builtin")["model_stats"]
            return model["inference_count"], model["inference_stats"]["success"]["count"]

        before = counts()
        client.infer("builtin", inputs(triton, list(QUESTIONS)))
        assert counts() == (before[0] + 4, before[1] + 4)

    def test_an_asynchronous_call_is_answered(self, server):
        aio = pytest.importorskip("tritonclient.http.aio", reason="there is no tritonclient")

        async def ask():
            async with aio.InferenceServerClient(f"localhost:{server.port}") as client:
                assert await client.is_server_ready()
                assert (await client.get_server_metadata())["name"] == "qa-server"
                calls = [
                    client.infer(
                        "builtin", inputs(aio, [question], binary_data=binary),
                        request_compression_algorithm=coding, response_compression_algorithm=coding,
                    )
                    for question in QUESTIONS
                    for binary in (True, False)
                    for coding in (None, "gzip", "deflate")
                ]  # fmt: skip
                results = await asyncio.gather(*calls)
                with pytest.raises(aio.InferenceServerException):
                    await client.infer("other", inputs(aio, ["Who?"]))
                return [answers(result)[0] for result in results]

        assert asyncio.run(ask()) == [answer for answer in QUESTIONS.values() for _ in range(6)]


KSERVE_PYTHON = os.environ.get("KSERVE_PYTHON", "")
ASK_BY_KSERVE = """
import asyncio, json, sys
import kserve

async def ask(base, questions, text):
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(base)
    assert await client.is_server_ready(base)
    assert await client.is_model_ready(base, "builtin")
    columns = {"question": questions, "text": [text] * len(questions)}
    tensors = [kserve.InferInput(n, [len(d)], "BYTES", data=d) for n, d in columns.items()]
    request = kserve.InferRequest("builtin", tensors)
    response = await client.infer(base, request, model_name="builtin")
    return next(output.data for output in response.outputs if output.name == "answer")

print(json.dumps(asyncio.run(ask(*json.loads(sys.argv[1])))))
"""


@pytest.mark.skipif(not KSERVE_PYTHON, reason="KSERVE_PYTHON names no interpreter with kserve")
def test_kserve_client_gets_the_answers(server):
    asked = json.dumps([f"http://localhost:{server.port}", list(QUESTIONS), TEXT])
    ran = run(KSERVE_PYTHON, "-c", ASK_BY_KSERVE, asked)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == list(QUESTIONS.values())


def test_requests_over_tls_are_answered(builtin_model, certificates):
    with running_server(builtin_model, *INSTANT, *certificates.server_flags) as running:
        connection = http.client.HTTPSConnection(
            "localhost", running.port, timeout=GIVE_UP_S, context=certificates.client_context()
        )
        connection.request("POST", "/qa", json.dumps(ASK))
        assert json.loads(connection.getresponse().read())["answer"] == FIRST_WORD
        connection.close()


def test_a_disconnected_clients_requests_are_dropped(builtin_model):
    with running_server(builtin_model, *QUEUEING) as server:
        columns = tensors(question=[ASK["question"]] * 60, text=[ASK["text"]] * 60)
        data = json.dumps({"inputs": columns}).encode()
        line = b"POST /v2/models/builtin/infer HTTP/1.1\r\nHost: localhost\r\n"
        with held_still(server.worker_pids()):
            with server.connect() as sock:
                sock.sendall(line + b"Content-Length: %d\r\n\r\n" % len(data) + data)
                wait_until(lambda: in_flight(server), lambda count: count == 60)
            wait_until(lambda: in_flight(server), lambda count: count == 0)
        assert server.stats()["counters"]["requests_total"]["abandoned"] == 60


def in_flight(server):
    return get(server.port, "/stats").json["gauges"]["requests_in_flight"]


def test_the_description_is_valid(server):
    validator = pytest.importorskip("openapi_spec_validator", reason="there is no validator")
    description = get(server.port, "/openapi.json").json
    validator.validate(description)
    assert "/qa" in description["paths"]
