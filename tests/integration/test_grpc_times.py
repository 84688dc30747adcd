"""gRPC calls that are late, cancelled, too many or traced, at a gateway whose server is busy."""

import pytest

from harness.gateway import running_gateway
from harness.process import GIVE_UP_S, held_still
from harness.server import ONE_BY_ONE
from tests.grpc_requests import Stub, failure, grpc, typed_request

CODES = grpc.StatusCode
FOUR = ["Who?", "When?", "Where?", "What?"]


@pytest.fixture(scope="module")
def busy(quick_model):
    """A server with one instance, which takes one question at a time."""
    flags = (*ONE_BY_ONE, "--max_queue_size", "20", "--log_level", "debug", "--log_format", "json")
    with running_gateway(quick_model, *flags) as running:
        yield running


@pytest.fixture
def stub(busy):
    with grpc.insecure_channel(busy.address) as channel:
        yield Stub(channel)


def test_a_grpc_call_past_its_deadline_is_not_run(busy, stub):
    with held_still(busy.instance_pids):
        first = stub.ModelInfer.future(typed_request(FOUR))
        busy.wait_for_flight(4)  # more than the instance takes beforehand
        told = failure(stub.ModelInfer, typed_request(), timeout=1.0)
        assert told.code() is CODES.DEADLINE_EXCEEDED
        busy.wait_for_flight(4)  # by its timeout, or because gRPC has cancelled the late call
    assert first.result(GIVE_UP_S).model_name == "builtin"


def test_a_call_cancelled_among_others_is_withdrawn(busy, stub):
    before = busy.counted("cancelled")
    with held_still(busy.instance_pids):
        first = stub.ModelInfer.future(typed_request(FOUR))
        busy.wait_for_flight(4)
        second = stub.ModelInfer.future(typed_request(FOUR))
        busy.wait_for_flight(8)
        second.cancel()
        busy.wait_for_count("cancelled", before + 4)
    assert first.result(GIVE_UP_S).model_name == "builtin"
    busy.wait_for_flight(0)
    assert busy.counted("cancelled") == before + 4


def test_a_full_queue_says_when_to_ask_again(busy, stub):
    with held_still(busy.instance_pids):
        told = failure(stub.ModelInfer, typed_request(["Who?"] * 40))
    assert told.code() is CODES.RESOURCE_EXHAUSTED
    trailers = dict(told.trailing_metadata())
    assert trailers["qa-error"] == "queue_full"
    assert int(trailers["retry-after"]) >= 1
    assert int(trailers["grpc-retry-pushback-ms"]) > 0


def test_a_trace_continues_from_the_grpc_call(busy, stub):
    trace = "0af7651916cd43dd8448eb211c80319c"
    metadata = [("traceparent", f"00-{trace}-b7ad6b7169203331-01")]
    stub.ModelInfer(typed_request(), metadata=metadata)
    busy.server.wait_for_log(trace)
