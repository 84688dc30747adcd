"""The gateway's messages: what is shipped is what is written, and what Triton's clients send."""

import asyncio

import pytest

pytest.importorskip("grpc", reason="there is no grpcio")

import grpc
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2

from qa_service.errors import (
    ERROR_KINDS,
    DeadlineExceededError,
    HttpError,
    InvalidRequestError,
    QueueFullError,
)
from qa_service.sidecars.grpc_gateway import grpc_messages
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    MAX_MESSAGE_CHARS,
    Caller,
    abort,
    read_call,
)
from qa_service.sidecars.grpc_gateway.links import read_reply
from qa_service.sidecars.grpc_gateway.reports import Reports
from qa_service.wire.error_codes import status_of
from qa_service.wire.frames import PREFIX
from qa_service.wire.json_codec import encode_answers
from qa_service.wire.messages import Answer, Answered, AnswerSource, Passage, Request, Timings

FOLDER = grpc_messages._DESCRIPTORS.parent


class Context:
    """A call's context, as far as a caller is known by it; its time is the test's."""

    def __init__(self, left_s=None):
        self._left_s = left_s

    def invocation_metadata(self):
        return (("authorization", "Bearer secret"), ("traceparent", "00-0af7-b7ad-01"))

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def time_remaining(self):
        return self._left_s

    async def abort(self, *ended):
        self.ended = ended
        raise grpc.aio.AbortError


@pytest.mark.parametrize(
    ("left_s", "timeout_ms", "limited_ms"),
    [
        (None, None, None),
        (None, 5.0, 5.0),
        (0.25, None, 250.0),
        (0.25, 5.0, 5.0),
        (0.25, 1e9, 250.0),
    ],
)
def test_a_calls_deadline_goes_to_the_server(left_s, timeout_ms, limited_ms):
    asked = Request("q?", "some text", timeout_ms=timeout_ms)
    [limited] = Caller(Context(left_s)).limit([asked])
    assert (limited.timeout_ms, limited.traceparent) == (limited_ms, "00-0af7-b7ad-01")


def test_contents_of_two_kinds_are_refused():
    asked = grpc_messages.ModelInferRequest(model_name="m")
    for column in ("question", "text"):
        its = asked.inputs.add(name=column, datatype="BYTES", shape=[1])
        its.contents.bytes_contents.append(b"typed")
        asked.raw_input_contents.append(b"\x03\0\0\0raw")
    with pytest.raises(InvalidRequestError, match="has contents besides raw_input_contents"):
        read_call(asked)
    for its in asked.inputs:
        its.ClearField("contents")
    assert [request.question for request in read_call(asked).requests] == ["raw"]


@pytest.mark.parametrize("status", [400, 404, 503])
def test_an_http_error_is_not_read_as_a_report(status, tmp_path):
    bodies = {200: b'{"name": "m"}', status: b'{"error": "no such model"}'}

    async def serve(reader, writer):
        for code, body in bodies.items():
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n" % (code, len(body))
            writer.write(head + body)

    async def ask():
        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            reports = Reports(tmp_path / "socket")
            assert await reports.ask("GET", "/v2", "") == {"name": "m"}
            with pytest.raises(HttpError, match="no such model") as caught:
                await reports.ask("GET", "/v2", "")
            assert caught.value.status == status

    asyncio.run(ask())


def test_a_call_without_time_is_not_asked():
    with pytest.raises(DeadlineExceededError):
        Caller(Context(0.0)).limit([Request("q?", "some text")])


@pytest.mark.parametrize("top_k", [1, 2])
def test_all_fields_of_a_servers_reply_are_read(top_k):
    answers = [Answer("words", 0.5, 6, 11, Passage("a.md", "A", "", 0, 11, "Other words"))]
    result = Answered(answers, Timings(1.0, 2.0), AnswerSource("m", 2, True, 3))
    frame = encode_answers(b"1", result, top_k)
    assert read_reply(bytes(frame[PREFIX.size :])) == result


def test_the_descriptors_are_those_of_the_proto_file(tmp_path):
    """If not, the command in its first lines makes them."""
    from grpc_tools import protoc

    made = tmp_path / "made"
    arguments = ["", f"-I{FOLDER}", f"--descriptor_set_out={made}", "inference.proto"]
    assert protoc.main(arguments) == 0
    found, expected = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for path in (grpc_messages._DESCRIPTORS, made)
    )
    assert found == expected


def messages_of(file):
    """Each message and nested message, by its full name."""
    waiting = list(file.message_types_by_name.values())
    for message in waiting:
        waiting += message.nested_types
    return {message.full_name: message for message in waiting}


def test_names_numbers_and_types_are_tritons():
    ours = messages_of(grpc_messages.POOL.FindFileByName("inference.proto"))
    theirs = messages_of(service_pb2.DESCRIPTOR)
    for dependency in service_pb2.DESCRIPTOR.dependencies:
        theirs |= messages_of(dependency)
    for name, message in ours.items():
        for field in message.fields:
            its = theirs[name].fields_by_number[field.number]
            assert (field.name, field.type, field.is_repeated) == (
                its.name, its.type, its.is_repeated
            ), name  # fmt: skip


def test_the_methods_are_tritons():
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    for name in grpc_messages.METHODS:
        theirs = service.methods_by_name[name]
        ours = grpc_messages.POOL.FindServiceByName(
            grpc_messages.INFERENCE_SERVICE
        ).methods_by_name[name]
        assert (ours.input_type.full_name, ours.output_type.full_name) == (
            theirs.input_type.full_name, theirs.output_type.full_name
        )  # fmt: skip
        assert (ours.client_streaming, ours.server_streaming) == (
            theirs.client_streaming, theirs.server_streaming
        )  # fmt: skip


def ended_by(error):
    """The status code, the message and the trailers of a call that the error ends."""
    context = Context()
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(abort(context, error))
    return context.ended


@pytest.mark.parametrize("kind", ERROR_KINDS.values())
def test_every_error_but_status_500_has_its_own_grpc_code(kind):
    code, _, _ = ended_by(kind())
    assert (code is grpc.StatusCode.INTERNAL) == (status_of(kind()) == 500)


def test_messages_are_short_and_have_the_retry_time():
    _, message, trailers = ended_by(QueueFullError("x" * 9000, retry_after_ms=1500))
    assert len(message) == MAX_MESSAGE_CHARS
    assert trailers == (
        ("qa-error", "queue_full"), ("retry-after", "2"), ("grpc-retry-pushback-ms", "1500")
    )  # fmt: skip
    assert ended_by(HttpError(status=404))[2] == ()
