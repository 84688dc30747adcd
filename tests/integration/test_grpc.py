"""gRPC by other people's clients: Triton's, the health probe's, reflection's, Node's, KServe's."""

import asyncio
import json
import os
import queue
import shutil

import pytest

from harness.frames import ANSWER, ASK, QUESTIONS, TEXT
from harness.gateway import answers, inputs, running_gateway
from harness.process import GIVE_UP_S
from harness.server import INSTANT, ONE_INSTANCE, ROOT
from tests.grpc_requests import (
    Health,
    HealthRequest,
    Stub,
    failure,
    grpc,
    refused,
    triton,
    typed_request,
)
from tests.programs import run, run_python

CODES = grpc.StatusCode
FOUR = list(QUESTIONS)


@pytest.fixture(scope="module")
def gateway(quick_model):
    with running_gateway(quick_model, *ONE_INSTANCE) as running:
        yield running


@pytest.fixture(scope="module")
def quick(quick_model):
    """One for crowds of calls: which answer they get is seen elsewhere."""
    with running_gateway(quick_model, *INSTANT) as running:
        yield running


@pytest.fixture
def client(gateway):
    with triton.InferenceServerClient(gateway.address) as its:
        yield its


@pytest.fixture
def channel(gateway):
    with grpc.insecure_channel(gateway.address) as its:
        yield its


@pytest.fixture
def stub(channel):
    return Stub(channel)


def stream_of(client, **options) -> queue.Queue:
    """Opens the client's stream; what comes on it goes into the queue."""
    found: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)), **options)
    return found


class TestTritonClient:
    def test_server_metadata_and_health_over_grpc(self, client):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("builtin")
        assert client.is_model_ready("builtin", "1")
        assert not client.is_model_ready("other")
        metadata = client.get_server_metadata()
        assert metadata.name == "qa-server"
        assert "statistics" in metadata.extensions

    def test_model_metadata_and_configuration_over_grpc(self, client):
        metadata = client.get_model_metadata("builtin")
        assert [tensor.name for tensor in metadata.inputs] == ["question", "text"]
        assert list(metadata.versions) == ["1"]
        config = client.get_model_config("builtin").config
        assert config.input[0].data_type == 13  # TYPE_STRING
        assert config.instance_group[0].count == 1
        assert config.parameters["precision"].string_value
        assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
        [listed] = client.get_model_repository_index().models
        assert (listed.name, listed.version, listed.state) == ("builtin", "1", "READY")

    def test_statistics_count_each_question(self, client):
        def counts():
            [its] = client.get_inference_statistics("builtin").model_stats
            return its.inference_count, its.inference_stats.success.count

        before = counts()
        client.infer("builtin", inputs(triton, FOUR))
        assert counts() == (before[0] + 4, before[1] + 4)
        assert client.get_inference_statistics().model_stats[0].name == "builtin"

    @pytest.mark.parametrize("shape", [(), (4, 1)])
    @pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
    def test_triton_client_gets_the_answers(self, client, shape, coding):
        wanted = [triton.InferRequestedOutput(name) for name in ("answer", "start")]
        result = client.infer(
            "builtin", inputs(triton, FOUR, shape=shape), outputs=wanted, request_id="17",
            compression_algorithm=coding,
        )  # fmt: skip
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("17", "builtin", "1")
        assert answers(result) == list(QUESTIONS.values())
        starts = [TEXT.index(answer) for answer in QUESTIONS.values()]
        assert result.as_numpy("start").flatten().tolist() == starts
        assert result.as_numpy("answer").shape == (shape or (4,))
        assert result.as_numpy("score") is None

    def test_requests_take_parameters(self, client):
        result = client.infer(
            "builtin", inputs(triton, FOUR), parameters={"top_k": 3}, priority=1, timeout=10**9
        )
        assert result.as_numpy("answer").shape == (4, 3)
        assert result.as_numpy("answer")[0, 0].decode() == ANSWER
        assert result.as_numpy("score")[0, 0] > result.as_numpy("score")[0, 1]

    def test_a_call_from_asyncio_is_answered(self, gateway):
        import tritonclient.grpc.aio as aio

        async def ask():
            async with aio.InferenceServerClient(gateway.address) as client:
                assert await client.is_server_ready()
                calls = [client.infer("builtin", inputs(aio, [q])) for q in FOUR * 5]
                return [answers(result)[0] for result in await asyncio.gather(*calls)]

        assert asyncio.run(ask()) == list(QUESTIONS.values()) * 5

    def test_calls_over_the_in_flight_bound_wait_and_are_answered(self, quick):
        """None is refused, again and again: they wait."""
        request = typed_request()

        async def ask():
            async with grpc.aio.insecure_channel(quick.address) as channel:
                stub = Stub(channel)
                for _ in range(5):
                    await asyncio.gather(*(stub.ModelInfer(request) for _ in range(200)))

        asyncio.run(ask())

    def test_silent_streams_do_not_block_others(self, quick):
        async def ask():
            async with grpc.aio.insecure_channel(quick.address) as channel:
                stub, request = Stub(channel), typed_request()
                streams = [stub.ModelStreamInfer() for _ in range(70)]
                for stream in streams:
                    await stream.write(request)
                    assert not (await stream.read()).error_message
                await stub.ModelInfer(request)
                for stream in streams:
                    await stream.done_writing()

        asyncio.run(ask())

    def test_a_stream_answers_each_request(self, client):
        found = stream_of(client)
        for number, question in enumerate(FOUR * 10):
            client.async_stream_infer("builtin", inputs(triton, [question]), request_id=str(number))
        got = [found.get(timeout=GIVE_UP_S) for _ in FOUR * 10]
        client.stop_stream()
        by_id = {int(result.get_response().id): answers(result)[0] for result, _ in got}
        assert by_id == dict(enumerate(list(QUESTIONS.values()) * 10))

    @pytest.mark.parametrize("wants_empty", [False, True])
    def test_a_stream_says_which_response_is_the_last(self, client, wants_empty):
        found = stream_of(client)
        client.async_stream_infer(
            "builtin", inputs(triton, FOUR), request_id="7",
            enable_empty_final_response=wants_empty,
        )  # fmt: skip
        got = []
        while not got or not got[-1].parameters["triton_final_response"].bool_param:
            result, error = found.get(timeout=GIVE_UP_S)
            assert error is None
            got.append(result.get_response())
        assert [len(response.outputs) for response in got] == ([4, 0] if wants_empty else [4])
        assert {(response.id, response.model_name) for response in got} == {("7", "builtin")}
        client.stop_stream()
        assert found.empty()

    def test_an_error_is_the_last_response(self, stub):
        request = typed_request(FOUR, id="8")
        request.model_name = "other"
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        [told] = stub.ModelStreamInfer(iter([request]))
        assert "there is no model other" in told.error_message
        assert told.infer_response.parameters["triton_final_response"].bool_param

    def test_a_ready_server_is_always_reported_ready(self, gateway):
        """More checks at once than the server's backlog has room for."""
        import tritonclient.grpc.aio as aio

        async def ask():
            async with aio.InferenceServerClient(gateway.address) as client:
                checks = [client.is_server_ready() for _ in range(1500)]
                return await asyncio.gather(*checks)

        assert asyncio.run(ask()).count(False) == 0

    def test_an_error_leaves_the_stream_open(self, client):
        found = stream_of(client)
        client.async_stream_infer("other", inputs(triton, ["Who?"]))
        _, error = found.get(timeout=GIVE_UP_S)
        assert "there is no model other" in error.message()
        client.async_stream_infer("builtin", inputs(triton, [ASK["question"]]))
        result, _ = found.get(timeout=GIVE_UP_S)
        assert answers(result) == [ANSWER]
        client.stop_stream()

    def test_an_error_ends_the_stream_if_the_client_asks_for_that(self, client):
        found = stream_of(client, headers={"triton_grpc_error": "true"})
        client.async_stream_infer("other", inputs(triton, ["Who?"]))
        _, error = found.get(timeout=GIVE_UP_S)
        assert error.status() == "StatusCode.NOT_FOUND"
        client.stop_stream()

    @pytest.mark.parametrize(
        ("options", "status"),
        [
            ({"model_name": "other"}, "NOT_FOUND"),
            ({"model_name": "builtin", "model_version": "7"}, "NOT_FOUND"),
            ({"model_name": "builtin", "parameters": {"top_k": 99}}, "INVALID_ARGUMENT"),
            ({"model_name": "builtin", "sequence_id": 5}, "INVALID_ARGUMENT"),
        ],
    )
    def test_errors_have_their_status_and_message(self, client, options, status):
        with refused(status):
            client.infer(inputs=inputs(triton, ["Who?"]), **options)

    def test_calls_that_only_triton_has_get_unimplemented(self, client):
        for call in (client.get_log_settings, client.get_system_shared_memory_status):
            with refused("UNIMPLEMENTED"):
                call()


class TestMessages:
    def test_typed_contents_are_answered_typed(self, stub):
        response = stub.ModelInfer(typed_request(FOUR, id="5"))
        columns = {output.name: output.contents for output in response.outputs}
        assert response.id == "5"
        assert not response.raw_output_contents
        assert [a.decode() for a in columns["answer"].bytes_contents] == list(QUESTIONS.values())
        assert list(columns["start"].int_contents) == [TEXT.index(a) for a in QUESTIONS.values()]
        assert all(0 < score <= 1 for score in columns["score"].fp32_contents)

    def test_the_default_model_needs_no_name(self, stub):
        request = typed_request(FOUR)
        request.ClearField("model_name")
        assert stub.ModelInfer(request).model_name == "builtin"

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda request: request.raw_input_contents.append(b"\x01\0\0\0x"),
            lambda request: request.raw_input_contents.extend([b"\x01\0\0\0x"] * 2),
            lambda request: request.inputs[0].contents.bytes_contents.append(b"\xff"),
            lambda request: request.inputs[0].shape.append(7),
            lambda request: request.inputs[0].shape.append(-(2**63)),
            lambda request: request.inputs.pop(),
            lambda request: request.outputs.add(name="nothing"),
            lambda request: request.inputs[0].contents.bytes_contents.pop(),
            lambda request: setattr(request.inputs[0], "name", "x" * 9000),
            lambda request: setattr(request, "model_name", "x" * 9000),
            lambda request: setattr(request.parameters["top_k"], "string_param", "3"),
            lambda request: setattr(request.parameters["timeout"], "int64_param", -1),
        ],
    )
    def test_invalid_messages_are_refused_with_the_reason(self, stub, spoil):
        request = typed_request(FOUR)
        spoil(request)
        told = failure(stub.ModelInfer, request)
        assert told.code() is CODES.INVALID_ARGUMENT
        assert 0 < len(told.details()) <= 300

    def test_a_message_over_the_limit_is_refused(self, stub):
        request = typed_request(FOUR)
        request.inputs[1].contents.bytes_contents[0] = b"x" * (1 << 20)
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            told = failure(stub.ModelInfer, request, compression=compression)
            assert told.code() is CODES.RESOURCE_EXHAUSTED

    def test_a_question_whose_frame_is_over_the_limit_is_refused_alone(self, stub):
        request = typed_request(FOUR)
        request.inputs[1].contents.bytes_contents[0] = b"\x01" * 60_000  # six bytes each, in JSON
        told = failure(stub.ModelInfer, request)
        assert told.code() is CODES.RESOURCE_EXHAUSTED
        assert len(stub.ModelInfer(typed_request(FOUR)).outputs) == 4

    def test_both_packages_may_be_in_one_process(self):
        ours = "import qa_service.sidecars.grpc_gateway.grpc_messages"
        theirs = "import tritonclient.grpc"
        for code in (f"{ours}\n{theirs}", f"{theirs}\n{ours}"):
            ran = run_python("-c", code)
            assert ran.returncode == 0, ran.stderr


class TestHealth:
    @pytest.fixture
    def health(self, channel):
        return Health(channel)

    @pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "builtin"])
    def test_health_check_gives_the_servers_status(self, health, service):
        assert health.Check(HealthRequest(service=service)).status == 1  # SERVING

    def test_health_of_an_unknown_service_is_not_found(self, health):
        assert failure(health.Check, HealthRequest(service="other")).code() is CODES.NOT_FOUND
        watching = health.Watch(HealthRequest(service="other"))
        assert next(watching).status == 3  # SERVICE_UNKNOWN
        watching.cancel()


class TestReflection:
    def test_the_services_describe_themselves(self, channel):
        from google.protobuf.descriptor_pool import DescriptorPool
        from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
            ProtoReflectionDescriptorDatabase,
        )

        database = ProtoReflectionDescriptorDatabase(channel)
        services = database.get_services()
        assert set(services) == {
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        pool = DescriptorPool(database)
        for name in services:
            assert pool.FindServiceByName(name).methods
        method = pool.FindServiceByName(services[-1]).methods_by_name["ModelInfer"]
        assert method.input_type.fields_by_name["raw_input_contents"].number == 7

    def test_reflection_version_1_answers(self, channel):
        from grpc_reflection.v1alpha import reflection_pb2

        ask = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        [reply] = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert len(reply.list_services_response.service) == 4


NODE = shutil.which("node")
NODE_CLIENT = ROOT / "tests" / "integration" / "grpc_client.js"


@pytest.mark.slow
@pytest.mark.skipif(not NODE or not shutil.which("npm"), reason="there is no node with npm")
def test_node_js_client_gets_the_answers(gateway, tmp_path):
    packages = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.0")
    npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", tmp_path)
    installed = run(*npm, *packages)
    assert installed.returncode == 0, installed.stderr
    proto = ROOT / "qa_service" / "sidecars" / "grpc_gateway" / "inference.proto"
    env = {**os.environ, "NODE_PATH": str(tmp_path / "node_modules")}
    ran = run(NODE, NODE_CLIENT, gateway.address, proto, json.dumps(FOUR), TEXT, env=env)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["answers"] == list(QUESTIONS.values())
    assert told["streamed"] == dict(zip("0123", QUESTIONS.values(), strict=True))
    assert told["status"] == CODES.NOT_FOUND.value[0]


KSERVE_PYTHON = os.environ.get("KSERVE_PYTHON", "")
ASK_BY_KSERVE = """
import asyncio, json, sys
import kserve
import qa_service.sidecars.grpc_gateway.grpc_messages

async def ask(address, questions, text):
    client = kserve.InferenceGRPCClient(address, timeout=60)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("builtin")
    columns = {"question": questions, "text": [text] * len(questions)}
    tensors = [kserve.InferInput(n, [len(d)], "BYTES", data=d) for n, d in columns.items()]
    request = kserve.InferRequest("builtin", tensors)
    response = await client.infer(request)
    return next(output.data for output in response.outputs if output.name == "answer")

found = asyncio.run(ask(*json.loads(sys.argv[1])))
print(json.dumps([a.decode() if isinstance(a, bytes) else a for a in found]))
"""


@pytest.mark.skipif(not KSERVE_PYTHON, reason="KSERVE_PYTHON names no interpreter with kserve")
def test_kserve_client_gets_the_answers(gateway):
    """Beside the gateway's messages in one process, where Triton's client cannot be."""
    asked = json.dumps([gateway.address, FOUR, TEXT])
    ran = run(KSERVE_PYTHON, "-c", ASK_BY_KSERVE, asked)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == list(QUESTIONS.values())
