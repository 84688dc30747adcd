"""Cascades, shadow traffic and the cache over several real models, from one file."""

import pytest

from harness.frames import ANSWER, ASK, QUESTIONS, TEXT
from harness.models import link_model
from harness.server import ONE_INSTANCE, running_server
from tests.http_calls import get
from tests.programs import change_reading

NUM_SHADOWED = 12
INSTANCES = "num_inference_sessions = 1"


@pytest.fixture(scope="module")
def server(quick_model, tmp_path_factory):
    """Two models, one of them in two versions; routes with every outcome of a cascade."""
    folder = tmp_path_factory.mktemp("models")
    copy = folder / "versions" / "2"
    link_model(quick_model, copy)
    (folder / "versions" / "1").symlink_to(quick_model)
    change_reading(copy, temperature=3.0)
    config = folder / "server.toml"
    config.write_text(f"""
[models.small]
path = "{folder}/versions"
versions = "all"
traffic = {{ 1 = 100, 2 = 0 }}
shadow = {{ 2 = 100 }}
{INSTANCES}
[models.large]
path = "{quick_model}"
{INSTANCES}
[routes.default]
cascade = ["small", "large"]
min_score = 0.0

[routes.careful]
cascade = ["small", "large"]
min_score = 1.0
""")
    flags = (*ONE_INSTANCE, "--config", str(config), "--cache_bytes", "10000")
    with running_server(quick_model, *flags) as running:
        yield running


def test_a_model_that_is_sure_is_the_only_one_asked(server):
    reply = server.ask(**ASK)
    assert (reply["answer"], reply["model"], reply["models_asked"]) == (ANSWER, "small", 1)


def test_the_next_model_is_asked_where_one_is_not_sure(server):
    reply = server.ask(model="careful", **ASK, timeout_ms=60_000)
    assert (reply["answer"], reply["model"], reply["models_asked"]) == (ANSWER, "large", 2)
    assert reply["timings_ms"]["inference"] >= 0


def test_a_cascade_may_find_all_of_its_answers_in_the_cache(server):
    server.ask(model="careful", **ASK)
    again = server.ask(model="careful", **ASK)
    assert (again["cached"], again["models_asked"], again["model"]) == (True, 2, "large")
    direct = server.ask(model="large", **ASK)
    assert (direct["cached"], direct.get("models_asked")) == (True, None)


def test_a_shadows_answers_are_compared_and_not_sent(server):
    replies = [
        server.ask(model="small", question=question, text=f"{TEXT} {number}")
        for number in range(NUM_SHADOWED // len(QUESTIONS))
        for question in QUESTIONS
    ]
    assert {(reply["model"], reply["version"]) for reply in replies} == {("small", 1)}
    # Copies may still run: what asks after them waits for them.
    server.ask(model="small", version=2, **{**ASK, "text": TEXT * 2})
    [shadow] = server.stats()["shadows"]
    assert (shadow["model"], shadow["version"]) == ("small", 2)
    compared = shadow["agreed"] + shadow["differed"]
    assert compared > 0
    assert shadow["failed"] == 0
    assert shadow["agreement"] == 1.0
    text = get(server.port, "/metrics").body.decode()
    assert 'qa_shadow_requests_total{model="small",version="2",outcome="agreed"}' in text
    assert 'qa_cascade_requests_total{route="default",models_asked="1"}' in text
