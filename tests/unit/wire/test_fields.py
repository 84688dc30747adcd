"""Each row of `wire/fields.py` is served by each protocol that it names; no field is named here."""

import json
from collections.abc import Sequence
from typing import Any, cast, get_type_hints

import msgspec
import pytest

from qa_service import client

pytest.importorskip("grpc", reason="there is no grpcio")

from qa_service.programs.client_main import option_flag, parse_arguments
from qa_service.programs.jobs.job import encode_request, parse_request
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    ModelInferRequest,
    read_call,
    write_response,
)
from qa_service.wire import fields, json_codec
from qa_service.wire.frames import PREFIX
from qa_service.wire.http.open_inference import parse_infer
from qa_service.wire.http.tf_serving import parse_predict
from qa_service.wire.messages import (
    Answer,
    Answered,
    AnswerSource,
    Passage,
    Place,
    RejectedError,
    Request,
    Timings,
)

BASES = [{"question": "Who?", "text": "It was Ada."}, {"question": "Who?", "collection": "books"}]
NUMBER, WORD, FILTER = 2, "word", {"path": "a/", "date": {"after": "2026-01-31"}}


def request_with(name: str) -> dict[str, Any]:
    """The fields of a request that has this one."""
    value = NUMBER if name in fields.NUMBERS else FILTER if fields.REQUEST[name].is_json else WORD
    for base in BASES:
        try:
            json_codec.parse_request(json.dumps(asked := {**base, name: value}).encode())
        except RejectedError:
            continue
        return base if name in base else asked
    raise AssertionError(f"no request has {name}")


def parsed(asked: dict[str, object]) -> Request:
    """The request of a frame with these fields, without an id."""
    request = json_codec.parse_request(json.dumps({**asked, "id": None}).encode())
    assert isinstance(request, Request)
    return request


def infer_body(asked: dict[str, object], outputs: Sequence[str] = ()) -> dict[str, object]:
    """The request in the Open Inference Protocol, its times and priority in that one's units."""
    units = {"timeout_ms": NUMBER * 1000, "priority": 10 - NUMBER}
    return {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": [asked[name]]}
            for name in fields.TENSORS
            if name in asked
        ],
        "parameters": {
            parameter: json.dumps(asked[name])
            if fields.REQUEST[name].is_json
            else units.get(name, asked[name])
            for parameter, name in fields.PARAMETERS.items()
            if name in asked
        },
        "outputs": [{"name": name} for name in outputs],
    }


def grpc_request(body: dict[str, Any]):
    request = ModelInferRequest()
    for tensor in body["inputs"]:
        its = request.inputs.add(name=tensor["name"], shape=[1], datatype="BYTES")
        its.contents.bytes_contents.append(tensor["data"][0].encode())
    for name, value in body["parameters"].items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.parameters[name], kind, value)
    for output in body["outputs"]:
        request.outputs.add(name=output["name"])
    return request


def test_each_field_of_a_request_and_of_an_answer_has_a_row():
    assert set(fields.REQUEST) == set(Request.__struct_fields__)
    assert set(Answer.__struct_fields__) <= set(fields.OUTPUTS)


@pytest.mark.parametrize("name", [*fields.TENSORS, *fields.PARAMETERS.values()])
def test_the_open_inference_protocol_has_the_field_over_http_and_grpc(name):
    asked = request_with(name)
    body = infer_body(asked)
    over_http = parse_infer(json.dumps(body).encode(), None, "", "")
    over_grpc = read_call(grpc_request(body))
    assert [*over_http.requests] == [*over_grpc.requests] == [parsed(asked)]


@pytest.mark.parametrize("name", fields.COLUMNS)
def test_tensorflow_serving_has_the_field_in_rows_and_columns(name):
    asked = request_with(name)
    columns = {key: [value] for key, value in asked.items()}
    for body in ({"instances": [asked]}, {"inputs": columns}):
        call = parse_predict(json.dumps(body).encode(), "", "")
        assert [msgspec.structs.replace(one, model=None) for one in call.requests] == [
            parsed(asked)
        ]


@pytest.mark.parametrize("name", fields.REQUEST)
def test_a_job_has_the_fields_of_jobs_and_no_others(name):
    asked = request_with(name)
    sent = json.loads(encode_request(parse_request(json.dumps(asked).encode()), 7, None))
    is_kept = sent[name] in [asked[name], 7, None] if name in sent else False
    assert is_kept == (name in fields.JOB_FIELDS)


def test_pythons_clients_have_the_options_and_no_others():
    assert set(get_type_hints(client.AskOptions)) == set(fields.OPTIONS)


@pytest.mark.parametrize("name", fields.OPTIONS)
def test_an_option_of_pythons_clients_is_a_flag_of_the_terminals_and_a_field_of_the_wire(name):
    value = request_with(name)[name]
    words = json.dumps(value) if fields.REQUEST[name].is_json else str(value)
    flags = vars(parse_arguments([option_flag(name), words]))
    assert flags[option_flag(name).removeprefix("--")] == value
    assert client.option_fields(cast(client.AskOptions, {name: value}))[name] == value


PASSAGE = Passage(
    "a.md", "Title", "Heading", 0, 20, "It was Ada, was it? ", 1, 3, "page 3", "books"
)
ADA = Answer(
    "Ada", 0.5, 7, 10, PASSAGE, (Place(7, 10, "a.md", "books"), Place(40, 43, "b.md", "books"))
)
RESULT = Answered(
    [ADA, ADA], Timings(1.0, 2.0), AnswerSource("m", 1, passages=(PASSAGE,), unsure=(ADA,))
)
EXPECTED = {
    name: json.loads(msgspec.json.encode(row.read(RESULT.source if row.is_of_reply else ADA)))
    for name, row in fields.OUTPUTS.items()
}


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_open_inference_protocol_has_each_output_over_http_and_grpc(top_k):
    body = infer_body({**BASES[1], "top_k": top_k}, list(fields.OUTPUTS))
    call = parse_infer(json.dumps(body).encode(), None, "", "")
    outputs = json.loads(call.reply([RESULT]).body)["outputs"]
    message = write_response(read_call(grpc_request(body)), [RESULT])
    assert [output["name"] for output in outputs] == list(fields.OUTPUTS)
    for output, over_grpc in zip(outputs, message.outputs, strict=True):
        row = fields.OUTPUTS[output["name"]]
        expected = [EXPECTED[output["name"]]] * (1 if row.is_of_reply else top_k)
        data = output["data"]
        [contents] = (value for _, value in over_grpc.contents.ListFields())
        assert (over_grpc.name, list(over_grpc.shape)) == (output["name"], output["shape"])
        assert [str(one.decode() if isinstance(one, bytes) else one) for one in contents] == [
            str(one) for one in data
        ]
        assert [json.loads(one) if row.is_json else one for one in data] == expected


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(client.Span, Answer), (client.Passage, Passage), (client.Place, Place)],
    ids=lambda kind: kind.__name__,
)
def test_pythons_clients_have_the_fields_of_a_replys_parts_and_no_others(theirs, ours):
    assert tuple(theirs.__dataclass_fields__) == ours.__struct_fields__


def test_pythons_clients_read_each_field_of_a_replys_answers():
    frame = json_codec.encode_answers(b"7", RESULT, 2)
    reply = client.read_answer(json.loads(frame[PREFIX.size :]), 1.0)
    for read in (reply, *reply.alternatives):
        found = {
            name: msgspec.to_builtins(getattr(read, name)) for name in Answer.__struct_fields__
        }
        assert found == msgspec.to_builtins(ADA)
    assert msgspec.to_builtins(reply.passages) == msgspec.to_builtins(RESULT.source.passages)
    assert [one.answer for one in reply.unsure] == ["Ada"]


@pytest.mark.parametrize("top_k", [1, 2])
def test_tensorflow_serving_has_each_output_in_rows_and_columns(top_k):
    asked = {**BASES[1], "top_k": top_k}
    rows = parse_predict(json.dumps({"instances": [asked]}).encode(), "", "")
    columns = parse_predict(
        json.dumps({"inputs": {key: [value] for key, value in asked.items()}}).encode(), *("", "")
    )
    expected = {
        name: value if top_k == 1 or fields.OUTPUTS[name].is_of_reply else [value] * top_k
        for name, value in EXPECTED.items()
    }
    assert json.loads(rows.reply([RESULT]).body) == {"predictions": [expected]}
    assert json.loads(columns.reply([RESULT]).body) == {
        "outputs": {name: [value] for name, value in expected.items()}
    }


@pytest.mark.parametrize("name", ["top_k", "priority"])
def test_a_whole_number_with_a_point_is_that_number(name):
    asked = b'{"id": 1.0, "question": "Who?", "text": "Ada.", "%s": %s}'
    request = json_codec.parse_request(asked % (name.encode(), b"1.0"))
    assert (getattr(request, name), request.id_json) == (1, b"1.0")
    for other in (b"1.5", b'"1.0"', b"true"):
        with pytest.raises(RejectedError):
            json_codec.parse_request(asked % (name.encode(), other))
