"""Random and mutated frames, at the decoder and at a live server.

In short; `python -m benchmarks.fuzz decoder` and `python -m benchmarks.fuzz server` do more.
"""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.decoder import check_body, check_stream, fuzz
from harness.live_fuzz import fuzz_server
from harness.server import INSTANT, running_server

NUM_DECODER_FRAMES = 30_000
NUM_SERVER_FRAMES = 10_000
FRAMES_PER_S = 2000
AT_ANY_PACE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        name: st.text() | json_values
        for name in ("id", "question", "text", "top_k", "timeout_ms", "priority", "more")
    },
)


@given(st.binary(max_size=400))
@AT_ANY_PACE
def test_random_streams_are_parsed_or_refused(data):
    check_stream(data)


@given(requests)
@AT_ANY_PACE
def test_random_requests_are_parsed_or_refused(request_fields):
    import json

    check_body(json.dumps(request_fields).encode("utf-8", "surrogatepass"))
    check_body(json.dumps(request_fields, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def test_mutated_frames_are_parsed_or_refused():
    num_valid = fuzz(NUM_DECODER_FRAMES, seed=20)
    print(f"\n{NUM_DECODER_FRAMES} frames, {num_valid} of them still requests")
    assert num_valid > NUM_DECODER_FRAMES // 10


@pytest.mark.soak
def test_a_server_survives_mutated_frames(builtin_model):
    with running_server(builtin_model, *INSTANT) as server:
        report = asyncio.run(fuzz_server(server, NUM_SERVER_FRAMES, FRAMES_PER_S, seed=21))
        print(f"\n{report}")
        assert report.is_survived
        assert " ended (" not in server.log
