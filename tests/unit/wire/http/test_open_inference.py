"""The Open Inference Protocol's tensors: read from JSON and from binary, and written as both."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import InvalidRequestError
from qa_service.wire.http.open_inference import MAX_QUESTIONS, parse_infer, priority_of
from qa_service.wire.messages import UNKNOWN_SOURCE, Answer, Answered, AnswerSource, Timings

TIMINGS = Timings(1.0, 2.0)
ADA = Answer("Ada", 0.5, 7, 10)


def tensor(name, data, shape=None, **parameters):
    described = {"name": name, "datatype": "BYTES", "shape": shape or [len(data)]}
    if parameters:
        return {**described, "parameters": parameters}
    return {**described, "data": data}


def body_of(questions=("Who?",), texts=("It was Ada.",), **more):
    return {"inputs": [tensor("question", list(questions)), tensor("text", list(texts))], **more}


def parse(body, header_length=None, binary=b""):
    data = json.dumps(body).encode()
    length = str(len(data)) if binary and header_length is None else header_length
    return parse_infer(data + binary, length, "builtin", "1")


def reply_to(call, *answers):
    """The reply to as many questions, its body from JSON."""
    results = [Answered([answer], TIMINGS, UNKNOWN_SOURCE) for answer in answers]
    return json.loads(call.reply(results).body)


def pack(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize("data", [["a?", "b?"], [["a?"], ["b?"]]], ids=["flat", "nested"])
@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_data_may_be_flat_or_nested(data, shape):
    inputs = [tensor("text", ["A.", "B."], shape), tensor("question", data, shape)]
    call = parse({"inputs": inputs})
    assert [(its.question, its.text) for its in call.requests] == [("a?", "A."), ("b?", "B.")]
    reply = reply_to(call, ADA, ADA)
    assert [output["shape"] for output in reply["outputs"]] == [shape] * 4


@pytest.mark.parametrize("kind", [int, float])
def test_parameters_are_read(kind):
    numbers = {"timeout": kind(1500), "priority": kind(1), "top_k": kind(3)}
    call = parse(body_of(parameters={**numbers, "mine": "x"}))
    [request] = call.requests
    assert (request.timeout_ms, request.priority, request.top_k) == (1.5, 9, 3)


@pytest.mark.parametrize(
    ("level", "ours"), [(0, 0), (1, 9), (2, 8), (9, 1), (10, 0), (11, 0), (2**32, 0)]
)
def test_tritons_priorities_are_mapped(level, ours):
    assert priority_of(level) == ours


def test_missing_answers_are_padded():
    reply = reply_to(parse(body_of(parameters={"top_k": 3})), ADA)
    assert [output["shape"] for output in reply["outputs"]] == [[1, 3]] * 4
    assert [output["data"] for output in reply["outputs"]] == [
        ["Ada", "", ""], [0.5, 0.0, 0.0], [7, -1, -1], [10, -1, -1],
    ]  # fmt: skip


def test_the_response_has_cached_and_the_number_of_models_asked():
    call = parse(body_of(["a?", "b?"], ["A.", "B."]))
    kept, asked = AnswerSource(is_cached=True), AnswerSource(models_asked=2)
    for sources, parameters in (
        ((kept, kept), {"cached": True}),
        ((kept, asked), {"models_asked": 2}),
        ((AnswerSource(), AnswerSource()), None),
    ):
        results = [Answered([ADA], TIMINGS, source) for source in sources]
        assert json.loads(call.reply(results).body).get("parameters") == parameters


def test_binary_data_is_read_and_written():
    binary = {"question": pack("Wö?".encode()), "text": pack(b"It was Ada.")}
    inputs = [tensor(n, None, [1, 1], binary_data_size=len(d)) for n, d in binary.items()]
    outputs = [{"name": "end"}, {"name": "answer", "parameters": {"binary_data": True}},
               {"name": "score", "parameters": {"binary_data": True}}]  # fmt: skip
    call = parse({"inputs": inputs, "outputs": outputs}, binary=b"".join(binary.values()))
    assert (call.requests[0].question, call.requests[0].text) == ("Wö?", "It was Ada.")
    reply = call.reply([Answered([ADA], TIMINGS, UNKNOWN_SOURCE)])
    size = int(reply.fields["Inference-Header-Content-Length"])
    described = json.loads(reply.body[:size])["outputs"]
    assert [output["name"] for output in described] == ["end", "answer", "score"]
    assert described[0]["data"] == [10]
    assert [output["parameters"]["binary_data_size"] for output in described[1:]] == [7, 4]
    assert reply.body[size:] == pack(b"Ada") + struct.pack("<f", 0.5)
    assert reply.content_type == "application/octet-stream"


def test_all_outputs_may_be_requested_in_binary():
    call = parse(body_of(parameters={"binary_data_output": True}))
    assert call.outputs == dict.fromkeys(["answer", "score", "start", "end"], True)


NAMES = ("question", "text")
BAD_INPUTS = {
    "no inputs": [],
    "one input": [tensor("question", ["Who?"])],
    "an input twice": [tensor("question", ["Who?"])] * 2,
    "another name": [tensor("question", ["Who?"]), tensor("context", ["It was Ada."])],
    "another datatype": [tensor("question", ["a"]), {**tensor("text", ["a"]), "datatype": "FP32"}],
    "too few elements": [tensor("question", ["Who?"], [2]), tensor("text", ["a", "b"])],
    "other shapes": [tensor("question", ["Who?"]), tensor("text", ["a"], [1, 1])],
    "no questions": [tensor("question", [], [0]), tensor("text", [], [0])],
    "too many": [tensor(n, ["a"] * (MAX_QUESTIONS + 1)) for n in NAMES],
    "a negative shape": [tensor(n, ["a"], [-1]) for n in NAMES],
    "no shape": [{**tensor(n, ["a"]), "shape": []} for n in NAMES],
    "a row of two": [tensor(n, ["a", "b"], [1, 2]) for n in NAMES],
    "a number": [tensor("question", [5]), tensor("text", ["a"])],
    "a blank text": [tensor("question", ["Who?"]), tensor("text", [" "])],
    "a long question": [tensor("question", ["a" * 2001]), tensor("text", ["a"])],
    "shared memory": [tensor(n, None, [1], shared_memory_region="x") for n in NAMES],
    "no data": [{**tensor(n, []), "data": None, "shape": [1]} for n in NAMES],
    "no binary data": [tensor(n, None, [1], binary_data_size=5) for n in NAMES],
    "data of a negative size": [tensor(n, None, [1], binary_data_size=-1) for n in NAMES],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_are_refused(name):
    with pytest.raises(InvalidRequestError):
        parse({"inputs": BAD_INPUTS[name]})


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"triton_enable_empty_final_response": 1}},
        {"parameters": {"triton_other": True}},
        {"parameters": {"topk": 3}},
        {"parameters": {"timeout_ms": 3}},
        {"parameters": {"top_k": 0}},
        {"parameters": {"top_k": 21}},
        {"parameters": {"top_k": True}},
        {"parameters": {"timeout": -1}},
        {"parameters": {"timeout": "soon"}},
        {"parameters": {"priority": 1.5}},
        {"parameters": {"filter": "status: final"}},
        {"parameters": {"filter": {"status": "final"}}},
        {"parameters": {"sequence_id": 5}},
        {"parameters": []},
        {"outputs": [{"name": "logits"}]},
        {"outputs": [{"name": "answer"}] * 2},
        {"outputs": [{"name": "answer", "parameters": {"classification": 2}}]},
        {"id": 7},
    ],
    ids=str,
)
def test_other_malformed_fields_are_refused(more):
    with pytest.raises(InvalidRequestError):
        parse(body_of(**more))


@pytest.mark.parametrize("length", ["", "x", "-1", "+5", "9" * 30, "100000", "5, 5", "\u0665"])
def test_a_bad_header_length_is_refused(length):
    with pytest.raises(InvalidRequestError):
        parse(body_of(), length)


@pytest.mark.parametrize(
    "data",
    [b"", b"\1\0\0", pack(b"Who?")[:-1], pack(b"Who?") + b"\0", pack(b"Who?", b"When?"),
     pack(b"\xff"), b"\xff\xff\xff\xff"],
    ids=str,
)  # fmt: skip
def test_bad_binary_data_is_refused(data):
    inputs = [tensor("question", None, [1], binary_data_size=len(data)), tensor("text", ["a"])]
    with pytest.raises(InvalidRequestError):
        parse({"inputs": inputs}, binary=data or b"x")


def test_binary_data_of_no_input_is_refused():
    with pytest.raises(InvalidRequestError):
        parse(body_of(), binary=b"x")


def test_bytes_that_are_not_utf8_are_refused():
    body = json.dumps(body_of()).encode().replace(b'"inputs"', b'"more": "\xff", "inputs"')
    with pytest.raises(InvalidRequestError):
        parse_infer(body, None, "builtin", "1")


@given(st.binary(max_size=300), st.none() | st.integers(0, 310).map(str))
def test_any_body_is_parsed_or_refused(body, header_length):
    with pytest.raises(InvalidRequestError):
        parse_infer(body, header_length, "builtin", "1")


@pytest.mark.parametrize(
    ("names", "parameters", "meant"),
    [
        (("question", "context"), {}, "text"),
        (("query", "text"), {}, "question"),
        (("question", "text"), {"top-k": 2}, "top_k"),
        (("question", "text"), {"timeout_ms": 2}, "timeout"),
    ],
)
def test_a_near_miss_gets_a_suggestion(names, parameters, meant):
    inputs = [tensor(name, ["A."], [1]) for name in names]
    with pytest.raises(InvalidRequestError, match=f"did you mean `{meant}`"):
        parse({"inputs": inputs, "parameters": parameters})
